// Package site writes what an operator prepares before Aether can be used at a
// site: the site file, the certificates and host keys it names, and the keys of
// the payload codec. In the lab that is examples/site.yaml, with the lab's own
// certificates and Cilium chart put in.
//
// Reading and checking a site file is the product's (internal/site); what is
// written here has passed it.
package site
