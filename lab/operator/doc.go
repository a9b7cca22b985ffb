// Package operator does to a lab that runs what a platform's operator does to
// a platform: it starts and watches processes through Temporal, changes
// replicas through the management API, and reads histories. The lab's
// recorder of histories and its benchmark are built on it.
package operator
