// Package kamaji stands in for Kamaji, the operator that runs tenants' control
// planes as pods: it serves the same CRDs, writes the same objects in the same
// order, with the same names, labels, keys, delays and status, and keeps the
// same silence when something is wrong. The pods themselves are run by
// whatever kubelet the cluster has.
//
// Kamaji is the program; it has three controllers, as the real one: the walk
// (one TenantControlPlane into its Service, Secrets, Deployment, one worker
// by default, so that one stuck tenant holds up the rest), the soot manager
// (what is inside the tenant: RBAC, cluster-info, addons, healed when
// changed), and the DataStore's. Its admission webhooks are registered by URL.
//
// Where the real one has traps, so has this one: Ready is said before the
// tenant side exists; admin.conf and cluster-info keep the old server when the
// advertise address changes; a control plane that cannot be made shows nothing
// at all; the object is gone before its pods.
//
// It is not a way to run control planes in production, knows nothing of its
// clients, and cannot do what was never observed: kine drivers, datastore
// migration, Ingress and Gateway routes, dual stack beyond admission.
package kamaji
