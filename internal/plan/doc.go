// Package plan turns what was observed and what is wanted into a Plan: which
// virtual machines on which host, with how much memory reserved where, and
// every check with its result. It is pure: no calls, no clock, sorted output.
package plan
