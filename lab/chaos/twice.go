package chaos

import (
	"context"
	"fmt"
	"slices"
	"strings"

	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"

	"aether.internal/aether/api/v1alpha1"
	"aether.internal/aether/internal/domain"
)

// Twice looks at the hosts and at the records for VMIDs, addresses and MACs
// that more than one machine has.
func (l *Lab) Twice(ctx context.Context) ([]string, error) {
	owners := map[string][]string{}
	own := func(what, owner string) {
		if !slices.Contains(owners[what], owner) {
			owners[what] = append(owners[what], owner)
		}
	}
	for _, vm := range l.World.Proxmox.VMs() {
		if vm.Template {
			continue
		}
		own(fmt.Sprintf("VMID %d", vm.VMID), vm.UUID)
		for key, value := range vm.Config {
			if strings.HasPrefix(key, "net") {
				if mac := macOf(value); mac != "" {
					own("MAC "+mac, vm.UUID)
				}
			}
		}
	}
	list := &v1alpha1.AetherVMList{}
	if err := l.Kube.List(ctx, list, kubeclient.InNamespace(domain.SystemNamespace)); err != nil {
		return nil, fmt.Errorf("list AetherVMs: %w", err)
	}
	for _, vm := range list.Items {
		own(fmt.Sprintf("VMID %d", vm.Spec.VMID), vm.Name)
		for _, nic := range vm.Spec.NICs {
			own("address "+nic.Address, vm.Name)
			own("MAC "+strings.ToUpper(nic.MAC), vm.Name)
		}
	}
	var twice []string
	for what, who := range owners {
		if len(who) > 1 {
			twice = append(twice, fmt.Sprintf("%s of %s", what, strings.Join(who, " and ")))
		}
	}
	slices.Sort(twice)
	return twice, nil
}

// macOf reads the MAC of a netN value, as virtio=BC:24:11:…,bridge=vmbr0.
func macOf(value string) string {
	model, _, _ := strings.Cut(value, ",")
	_, mac, _ := strings.Cut(model, "=")
	return strings.ToUpper(mac)
}
