// Package capicore installs the real Cluster API core into the lab's
// management cluster and runs its manager: CRDs, roles and webhook
// configurations are the ones of its release.
//
// What differs from an installation by clusterctl: the manager is a child
// process and not a pod, so the API server calls its webhooks by URL; its
// certificate is made here and not by cert-manager; and CRDs have no
// conversion, so that clients must speak v1beta2, as Aether does.
package capicore
