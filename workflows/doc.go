// Package workflows holds Aether's durable processes, one a file. A workflow
// reads as the process it is: named steps that each call one activity, undo on
// a context of its own, and progress that a person understands at a glance.
//
// Workflows decide and activities act. Nothing here makes a call, reads a
// clock or a secret; inputs and results carry references only.
package workflows
