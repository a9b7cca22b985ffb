// Package temporal runs the Temporal server and its web UI for the lab, as the
// one child process that lab/upstream builds. Its state is a SQLite file, so
// that it can be killed and started again in the middle of workflows.
package temporal
