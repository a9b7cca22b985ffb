// Package kamajitest starts, for a test, a management cluster with Kamaji's
// stand-in: a real control plane, an etcd for tenants with authentication on,
// and, when asked for, load balancers and a node that runs the pods. Tests of
// the stand-in and of the product's client share it; the latter are here, since
// they need the lab.
//
// The test's TestMain must be [Main].
package kamajitest
