// Package histories records histories of real runs in the lab, for the replay
// tests of the workflows: completed, failed, cancelled and retried ones.
//
// It only adds: a history that is there stays as it is, for a run of its kind
// may still be open on a platform with that version. Payloads are encrypted
// with a key that is published beside them, for its only purpose is that the
// tests read what a worker reads; names of the machine are taken out.
package histories
