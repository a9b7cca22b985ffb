// Package cilium installs and upgrades Cilium in tenants with the Helm SDK and
// judges whether it works.
//
// [Values] renders Aether's values: pure, with an allow-list, for the chart
// takes any misspelt key in silence. [Manager.Apply] brings a tenant's release
// to a chart and values. It decides by the release's history, so it can be
// repeated after it was cut off anywhere; it never waits for nodes, for there
// may be none; and a [Lease] in the tenant keeps it to one writer. What Helm
// calls deployed proves little, so [Observe] looks for itself.
//
// Which version a tenant runs is not decided here.
package cilium
