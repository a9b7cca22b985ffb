// Package upstream provides the programs of others that the lab starts and
// the product is never linked with: Kubernetes with etcd, Cluster API core,
// konnectivity, Temporal. Each is a Go module of its own below this folder,
// pinned by its go.sum, and is built from the Go module proxy with nothing but
// the Go tool chain: the first time that takes minutes, which is said on the
// terminal; afterwards the program lies in the user's cache.
//
// A program is built once per content of its module (go.mod, go.sum, sources),
// Go version and flags. Whoever needs it first builds it, everyone else waits
// behind a file lock; it appears under its name only when it is whole.
//
// The package starts nothing; see lab/upstream/process and the packages
// lab/controlplane, lab/temporal and lab/capicore.
package upstream
