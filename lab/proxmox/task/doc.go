// Package task runs the background workers of a PVE node and keeps their
// records: UPID, log, exit status, and the lists of active and finished ones.
//
// A work function reports through its Task: Log and Warn write lines, Step
// takes simulated time. An injected failure hits at the end of a Step, where
// the function's ordinary clean-up still runs; ErrKilled means that the worker
// died and must leave everything as it is.
package task
