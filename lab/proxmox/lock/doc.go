// Package lock holds the file locks of a PVE node: shared or exclusive, taken
// with a time-out, released when their holder ends, and with PVE's text when
// the time is up.
package lock
