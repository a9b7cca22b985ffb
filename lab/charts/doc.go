// Package charts holds the Helm charts that the lab installs in place of large
// real ones. The one for Cilium has the real chart's name, value keys, object
// names, order of init containers, tolerations and taints; its images run the
// programs of lab/programs/cilium.
package charts
