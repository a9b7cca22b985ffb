package kamaji_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"aether.internal/aether/lab/kamaji/kamajitest"
	"aether.internal/aether/lab/kamaji/v1alpha1"
)

// testRefusals sends what the real one was sent, and wants its words.
func testRefusals(t *testing.T, w *kamajitest.World) {
	const (
		validating = `admission webhook "vtenantcontrolplane.kb.io" denied the request: `
		mutating   = `admission webhook "mtenantcontrolplane.kb.io" denied the request: `
		invalid    = `TenantControlPlane.kamaji.clastix.io "bad" is invalid: `
	)
	network := func(change func(*v1alpha1.NetworkProfileSpec)) func(map[string]any) {
		return func(object map[string]any) {
			profile := v1alpha1.NetworkProfileSpec{}
			change(&profile)
			for key, value := range map[string]any{
				"advertiseAddress": profile.AdvertiseAddress, "serviceCidr": profile.ServiceCIDR, "podCidr": profile.PodCIDR,
			} {
				if value != "" {
					set(object, value, "spec", "networkProfile", key)
				}
			}
			if len(profile.CertSANs) > 0 {
				set(object, list(profile.CertSANs), "spec", "networkProfile", "certSANs")
			}
			if len(profile.DNSServiceIPs) > 0 {
				set(object, list(profile.DNSServiceIPs), "spec", "networkProfile", "dnsServiceIPs")
			}
		}
	}
	version := func(v string) func(map[string]any) {
		return func(object map[string]any) { set(object, v, "spec", "kubernetes", "version") }
	}
	for _, test := range []struct {
		name   string
		change func(map[string]any)
		want   string // prefix; empty: accepted
	}{
		{"as it should be", func(map[string]any) {}, ""},
		{"no deployment", func(o map[string]any) { unset(o, "spec", "controlPlane", "deployment") }, `Internal error occurred: add operation does not apply: doc is missing path: "/spec/controlPlane/deployment/replicas": missing value`},
		{"no service", func(o map[string]any) { unset(o, "spec", "controlPlane", "service") }, invalid + `[spec.controlPlane.service: Required value, <nil>: Invalid value: `},
		{"no kubelet", func(o map[string]any) { unset(o, "spec", "kubernetes", "kubelet") }, invalid + `[spec.kubernetes.kubelet: Required value, <nil>: `},
		{"no version", func(o map[string]any) { unset(o, "spec", "kubernetes", "version") }, invalid + `[spec.kubernetes.version: Required value, `},
		{"no network", func(o map[string]any) { unset(o, "spec", "networkProfile") }, invalid + `[spec: Invalid value: `},
		{"unknown datastore", func(o map[string]any) { set(o, "nope", "spec", "dataStore") }, validating + `nope DataStore does not exist`},
		{"too new", version("v1.37.0"), validating + `unable to create a TenantControlPlane with a Kubernetes version greater than the supported one, actually v1.36`},
		{"no patch", version("v1.35"), validating + `unable to parse the desired Kubernetes version: No Major.Minor.Patch elements found`},
		{"latest", version("latest"), validating + `unable to parse the desired Kubernetes version: No Major.Minor.Patch elements found`},
		{"no v", version("1.35.6"), ""},
		{"pre-release", version("v1.36.0-alpha.1"), ""},
		{"name", func(o map[string]any) { set(o, "1bad", "metadata", "name") }, validating + `the provided name is invalid, a DNS-1035 label must consist of`},
		{"long name", func(o map[string]any) { set(o, strings.Repeat("a", 64), "metadata", "name") }, validating + `the provided name is invalid, must be no more than 63 characters`},
		{"SAN", network(func(n *v1alpha1.NetworkProfileSpec) { n.CertSANs = []string{"not valid!"} }), validating + `spec.networkProfile.certSANs: Invalid value: "not valid!": altname is not a valid IP address, DNS label or a DNS label with subdomain wildcards: a lowercase RFC 1123 subdomain`},
		{"wildcard SAN", network(func(n *v1alpha1.NetworkProfileSpec) { n.CertSANs = []string{"*.example.test"} }), ""},
		{"advertise a name", network(func(n *v1alpha1.NetworkProfileSpec) { n.AdvertiseAddress = "api.example.test" }), invalid + `spec.networkProfile.advertiseAddress: Invalid value: "api.example.test": advertiseAddress must be a valid IP address`},
		{"service type", func(o map[string]any) { set(o, "ExternalName", "spec", "controlPlane", "service", "serviceType") }, invalid + `[spec.controlPlane.service.serviceType: Unsupported value: "ExternalName": supported values: "ClusterIP", "NodePort", "LoadBalancer", <nil>: `},
		{"port", func(o map[string]any) { set(o, int64(70000), "spec", "networkProfile", "port") }, ""},
		{"service range", network(func(n *v1alpha1.NetworkProfileSpec) { n.ServiceCIDR = "10.96.0.0" }), mutating + `cannot define resulting DNS Service IP: invalid CIDR address: 10.96.0.0`},
		{"pod range", network(func(n *v1alpha1.NetworkProfileSpec) { n.PodCIDR = "foo" }), invalid + `[`},
		{"DNS outside", network(func(n *v1alpha1.NetworkProfileSpec) { n.DNSServiceIPs = []string{"10.96.0.10"} }), validating + `DNS service IP "10.96.0.10" is not contained in any configured service CIDR`},
		{"DNS no address", network(func(n *v1alpha1.NetworkProfileSpec) { n.DNSServiceIPs = []string{"foo"} }), validating + `DNS service IP "foo" is not a valid IP address`},
		{"cgroup driver", func(o map[string]any) { set(o, "x", "spec", "kubernetes", "kubelet", "cgroupfs") }, invalid + `[spec.kubernetes.kubelet.cgroupfs: Unsupported value: "x": supported values: "systemd", "cgroupfs"`},
		{"admission", func(o map[string]any) { set(o, []any{"Foo"}, "spec", "kubernetes", "admissionControllers") }, invalid + `[spec.kubernetes.admissionControllers[0]: Unsupported value: "Foo": supported values: "AlwaysAdmit"`},
		{"gateway", func(o map[string]any) { set(o, map[string]any{"hostname": "x"}, "spec", "controlPlane", "gateway") }, validating + `the Gateway API is not available in this cluster, cannot use gatewayRoute configuration`},
		{"source ranges", func(o map[string]any) {
			set(o, []any{"10.0.0.0/8"}, "spec", "networkProfile", "loadBalancerSourceRanges")
		}, invalid + `spec: Invalid value: `},
	} {
		t.Run(test.name, func(t *testing.T) {
			object := sent("bad")
			test.change(object.Object)
			err := w.API.Create(t.Context(), object, client.DryRunAll, client.FieldValidation("Strict"))
			switch {
			case test.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case test.want != "" && err == nil:
				t.Errorf("accepted; want %s", test.want)
			case test.want != "" && !strings.HasPrefix(err.Error(), test.want):
				t.Errorf("answer\n got %s\nwant %s", err, test.want)
			}
		})
	}
}

// sent is a control plane as a person writes it.
func sent(name string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"namespace": "tenants", "name": name},
		"spec": map[string]any{
			"controlPlane": map[string]any{"deployment": map[string]any{"replicas": int64(1)}, "service": map[string]any{"serviceType": "ClusterIP"}},
			"kubernetes":   map[string]any{"version": "v1.35.6", "kubelet": map[string]any{"cgroupfs": "systemd"}},
			"networkProfile": map[string]any{
				"advertiseAddress": "127.10.0.10", "port": int64(6443), "serviceCidr": "10.112.0.0/16", "podCidr": "10.200.0.0/16",
			},
		},
	}}
	object.SetGroupVersionKind(v1alpha1.GroupVersion().WithKind("TenantControlPlane"))
	return object
}

func set(object map[string]any, value any, path ...string) {
	if err := unstructured.SetNestedField(object, value, path...); err != nil {
		panic(err)
	}
}

func unset(object map[string]any, path ...string) { unstructured.RemoveNestedField(object, path...) }

func list(texts []string) []any {
	all := make([]any, len(texts))
	for i, text := range texts {
		all[i] = text
	}
	return all
}

func testDefaults(t *testing.T, w *kamajitest.World) {
	object := sent("plain")
	set(object.Object, map[string]any{}, "spec", "addons", "konnectivity")
	if err := w.API.Create(t.Context(), object, client.DryRunAll); err != nil {
		t.Fatal(err)
	}
	got, _, _ := unstructured.NestedMap(object.Object, "spec")
	want := map[string]any{
		"addons": map[string]any{"konnectivity": map[string]any{
			"agent": map[string]any{
				"hostNetwork": false, "image": "registry.k8s.io/kas-network-proxy/proxy-agent", "mode": "DaemonSet",
				"tolerations": []any{map[string]any{"key": "CriticalAddonsOnly", "operator": "Exists"}},
			},
			"server": map[string]any{"image": "registry.k8s.io/kas-network-proxy/proxy-server", "port": int64(8132)},
		}},
		"controlPlane": map[string]any{
			"deployment": map[string]any{
				"registrySettings": map[string]any{
					"apiServerImage": "kube-apiserver", "controllerManagerImage": "kube-controller-manager",
					"registry": "registry.k8s.io", "schedulerImage": "kube-scheduler",
				},
				"replicas": int64(1), "serviceAccountName": "default",
				"strategy": map[string]any{"type": "RollingUpdate", "rollingUpdate": map[string]any{"maxSurge": "100%", "maxUnavailable": int64(0)}},
			},
			"service": map[string]any{"serviceType": "ClusterIP"},
		},
		"dataStore": "default",
		"kubernetes": map[string]any{
			"admissionControllers": list(strings.Split("CertificateApproval CertificateSigning CertificateSubjectRestriction DefaultIngressClass DefaultStorageClass DefaultTolerationSeconds LimitRanger MutatingAdmissionWebhook NamespaceLifecycle PersistentVolumeClaimResize Priority ResourceQuota RuntimeClass ServiceAccount StorageObjectInUseProtection TaintNodesByCondition ValidatingAdmissionWebhook", " ")),
			"kubelet":              map[string]any{"cgroupfs": "systemd", "preferredAddressTypes": []any{"InternalIP", "ExternalIP", "Hostname"}},
			"version":              "v1.35.6",
		},
		"networkProfile": map[string]any{
			"advertiseAddress": "127.10.0.10", "clusterDomain": "cluster.local", "dnsServiceIPs": []any{"10.112.0.10"},
			"podCidr": "10.200.0.0/16", "podCidrs": []any{"10.200.0.0/16"}, "port": int64(6443),
			"serviceCidr": "10.112.0.0/16", "serviceCidrs": []any{"10.112.0.0/16"},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("spec as stored (-want +got):\n%s", diff)
	}
}
