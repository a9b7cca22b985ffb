// Package kamaji asks Kamaji for tenants' control planes and judges whether
// they can be used.
//
// [Build] turns a [Spec] into the TenantControlPlane that Aether applies: the
// proxy's address is the advertised one from birth, since Kamaji never corrects
// it in the kubeconfigs and in cluster-info later; NodeRestriction is switched
// on, which Kamaji leaves out; what Kamaji would default is said.
//
// [Client] applies it, and looks for itself whether all that is needed is
// there ([Client.Check]): Kamaji says Ready seconds before a tenant's RBAC and
// cluster-info exist, says it of a control plane whose controller-manager and
// scheduler never reached the API server, and says nothing at all of one that
// it cannot make. [Client.Remains] tells when a deleted one is really gone,
// which is after its object.
//
// It is no controller and holds no state; a workflow's activities call it.
package kamaji
