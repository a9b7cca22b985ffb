package plan

import (
	"slices"

	"aether.internal/aether/api/v1alpha1"
)

// Share is a pool's part on one host: the size of one MachineDeployment.
type Share struct {
	Pool     string `json:"pool"`
	Host     string `json:"host"`
	Replicas int32  `json:"replicas"`
	MinSize  int32  `json:"minSize"`
	MaxSize  int32  `json:"maxSize"`
}

// Shares splits a pool evenly over its hosts, the first hosts by name taking
// what does not divide. The sums are the pool's own numbers, and on each host
// min ≤ replicas ≤ max holds, since all three are dealt in the same order.
func Shares(pool v1alpha1.Pool) []Share {
	hosts := slices.Sorted(slices.Values(pool.Hosts))
	shares := make([]Share, 0, len(hosts))
	for i, host := range hosts {
		shares = append(shares, Share{
			Pool:     pool.Name,
			Host:     host,
			Replicas: part(value(pool.Replicas), i, len(hosts)),
			MinSize:  part(value(pool.MinSize), i, len(hosts)),
			MaxSize:  part(value(pool.MaxSize), i, len(hosts)),
		})
	}
	return shares
}

func part(total int32, i, n int) int32 {
	share := total / int32(n) //nolint:gosec // n is the number of hosts of a site
	if int32(i) < total%int32(n) {
		share++
	}
	return share
}

func value(number *int32) int32 {
	if number == nil {
		return 0
	}
	return *number
}
