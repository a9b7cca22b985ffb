package kamaji

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"aether.internal/aether/lab/kamaji/v1alpha1"
)

func TestArguments(t *testing.T) {
	got := arguments(
		map[string]string{"--authorization-mode": "Node,RBAC", "--allow-privileged": "true"},
		[]string{"--authorization-mode=RBAC", "--secure-port=1", "--v=1"},
		map[string]string{"--secure-port": "6443"},
	)
	want := []string{"--allow-privileged=true", "--authorization-mode=RBAC", "--secure-port=6443", "--v=1"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("defaults give way to extra ones, managed do not (-want +got):\n%s", diff)
	}
	if got := arguments(nil, nil, nil); len(got) != 0 {
		t.Errorf("no arguments = %v", got)
	}
}

func TestSummarise(t *testing.T) {
	done := appsv1.DeploymentStatus{ObservedGeneration: 1, Replicas: 1, UpdatedReplicas: 1, ReadyReplicas: 1, AvailableReplicas: 1}
	rolling := appsv1.DeploymentStatus{ObservedGeneration: 1, Replicas: 2, UpdatedReplicas: 1, ReadyReplicas: 1, UnavailableReplicas: 1}
	for _, test := range []struct {
		name      string
		status    appsv1.DeploymentStatus
		replicas  int32
		blocked   bool
		installed string
		word      v1alpha1.KubernetesVersionStatus
		version   string
	}{
		{"asleep, even if nothing ever ran", appsv1.DeploymentStatus{}, 0, false, "", v1alpha1.VersionSleeping, "v1.35.4"},
		{"nothing ready", appsv1.DeploymentStatus{ObservedGeneration: 1}, 1, false, "v1.35.3", v1alpha1.VersionNotReady, "v1.35.3"},
		{"writes blocked over a rollout", rolling, 1, true, "v1.35.3", v1alpha1.VersionWriteLimited, "v1.35.3"},
		{"rolled out", done, 1, false, "", v1alpha1.VersionReady, "v1.35.4"},
		{"another version", rolling, 1, false, "v1.35.3", v1alpha1.VersionUpgrading, "v1.35.3"},
		{"first rollout", rolling, 1, false, "", v1alpha1.VersionProvisioning, ""},
		{"same version", rolling, 1, false, "v1.35.4", v1alpha1.VersionUnknown, "v1.35.4"},
		{"scaled up", done, 2, false, "v1.35.4", v1alpha1.VersionUnknown, "v1.35.4"},
	} {
		t.Run(test.name, func(t *testing.T) {
			deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Generation: 1}, Spec: appsv1.DeploymentSpec{Replicas: &test.replicas}, Status: test.status}
			spec := &v1alpha1.TenantControlPlaneSpec{Kubernetes: v1alpha1.KubernetesSpec{Version: "v1.35.4"}}
			spec.ControlPlane.Deployment.Replicas = &test.replicas
			spec.WritePermissions.BlockCreation = test.blocked
			word, version := summarise(deployment, spec, test.installed)
			if word != test.word || version != test.version {
				t.Errorf("got %s %q, want %s %q", word, version, test.word, test.version)
			}
		})
	}
}

func TestCovers(t *testing.T) {
	base := func() *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"x": "1"}}, Data: map[string]string{"k": "v"}}
	}
	for _, test := range []struct {
		name   string
		change func(*corev1.ConfigMap)
		want   bool
	}{
		{"the same", func(*corev1.ConfigMap) {}, true},
		{"more than wanted", func(c *corev1.ConfigMap) { c.Data["other"] = "w"; c.ResourceVersion = "7" }, true},
		{"another value", func(c *corev1.ConfigMap) { c.Data["k"] = "w" }, false},
		{"a label less", func(c *corev1.ConfigMap) { c.Labels = nil }, false},
	} {
		actual := base()
		test.change(actual)
		if got, err := covers(actual, base()); err != nil || got != test.want {
			t.Errorf("%s: %t, %v; want %t", test.name, got, err, test.want)
		}
	}
	shorter := map[string]any{"list": []any{"a"}}
	if covered(map[string]any{"list": []any{"a", "b"}}, shorter) {
		t.Error("a longer list covers a shorter one")
	}
	merged := merge(map[string]any{"keep": "1", "m": map[string]any{"old": "1", "x": "1"}}, map[string]any{"m": map[string]any{"x": "2"}, "none": nil})
	if diff := cmp.Diff(map[string]any{"keep": "1", "m": map[string]any{"old": "1", "x": "2"}}, merged); diff != "" {
		t.Errorf("merge (-want +got):\n%s", diff)
	}
}

func TestDNSServiceIPs(t *testing.T) {
	for _, test := range []struct {
		cidrs []string
		want  []string
		bad   bool
	}{
		{[]string{"10.96.0.0/16"}, []string{"10.96.0.10"}, false},
		{[]string{"10.96.1.5/16"}, []string{"10.96.1.15"}, false},
		{[]string{"fd00::/108"}, []string{"fd00::10"}, false},
		{[]string{"10.96.0.0"}, nil, true},
	} {
		got, err := dnsServiceIPs(test.cidrs)
		if (err != nil) != test.bad || (!test.bad && !slices.Equal(got, test.want)) {
			t.Errorf("%v: %v, %v", test.cidrs, got, err)
		}
	}
}

func TestImages(t *testing.T) {
	for _, test := range []struct {
		name  string
		addon *v1alpha1.AddonSpec
		want  string
	}{
		{"default", &v1alpha1.AddonSpec{}, "registry.k8s.io/coredns/coredns:v1.14.2"},
		{"a tag alone is ignored", &v1alpha1.AddonSpec{ImageTag: "v1.13.1"}, "registry.k8s.io/coredns/coredns:v1.14.2"},
		{"the default repository gets a folder", &v1alpha1.AddonSpec{ImageRepository: "registry.k8s.io", ImageTag: "v1.13.1"}, "registry.k8s.io/coredns/coredns:v1.13.1"},
		{"another must name it", &v1alpha1.AddonSpec{ImageRepository: "harbor.example.test/proxy-registry.k8s.io/coredns"}, "harbor.example.test/proxy-registry.k8s.io/coredns/coredns:v1.14.2"},
	} {
		p := &pass{tcp: &v1alpha1.TenantControlPlane{}}
		p.tcp.Spec.Addons.CoreDNS = test.addon
		if got := p.coreDNSImage(); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
	}
	p := &pass{tcp: &v1alpha1.TenantControlPlane{}}
	p.tcp.Spec.Kubernetes.Version = "v1.35.4"
	for pinned, want := range map[string]string{"": "v0.35.0", "v0.34.0": "v0.34.0"} {
		if got := p.tunnelVersion(pinned); got != want {
			t.Errorf("konnectivity pinned to %q: %s, want %s", pinned, got, want)
		}
	}
}

// TestCertificates checks what is peculiar: validity counts from the start of
// the program, and the authority's own name is its only SAN.
func TestCertificates(t *testing.T) {
	started := time.Now().Add(-time.Hour).Truncate(time.Second)
	k := &Kamaji{cfg: Config{Started: started}}
	ca, err := newCA("kubernetes", started)
	if err != nil {
		t.Fatal(err)
	}
	l := k.kubeadmLeaf(pkix.Name{CommonName: "kube-apiserver"}, x509.ExtKeyUsageServerAuth)
	l.dnsNames, l.ips = splitSANs([]string{"node", "localhost", "127.0.0.1", "node", "", "127.0.0.1"})
	pair, err := ca.issue(l)
	if err != nil {
		t.Fatal(err)
	}
	if !ca.issued(pair.cert) || expired(pair.cert) {
		t.Error("not issued by its authority, or expired")
	}
	if want := started.Add(-notBeforeSkew).UTC(); !pair.cert.NotBefore.Equal(want) {
		t.Errorf("valid from %s, want %s", pair.cert.NotBefore, want)
	}
	if diff := cmp.Diff([]string{"localhost", "node"}, pair.cert.DNSNames); diff != "" || len(pair.cert.IPAddresses) != 1 {
		t.Errorf("names (-want +got):\n%s%v", diff, pair.cert.IPAddresses)
	}
	if diff := cmp.Diff([]string{"kubernetes"}, ca.cert.DNSNames); diff != "" {
		t.Errorf("names of the authority (-want +got):\n%s", diff)
	}
	if got := missingSANs(pair.cert, []string{"node", "127.0.0.1", "other", "10.0.0.1"}); !slices.Equal(got, []string{"other", "10.0.0.1"}) {
		t.Errorf("missing names = %v", got)
	}
	if _, err := parsePair(pair.certPEM, ca.certPEM); err == nil {
		t.Error("a certificate passed for a key")
	}
	old := &Kamaji{cfg: Config{Started: time.Now().Add(-leafValidity)}}
	stale, err := ca.issue(old.kubeadmLeaf(pkix.Name{CommonName: "x"}, x509.ExtKeyUsageClientAuth))
	if err != nil || !expired(stale.cert) {
		t.Errorf("a Kamaji that is a year old issues expired certificates; got %v", err)
	}
}

func TestCRDsParse(t *testing.T) {
	crds, err := CRDs()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, crd := range crds {
		names = append(names, crd.Name)
	}
	if diff := cmp.Diff([]string{"datastores.kamaji.clastix.io", "tenantcontrolplanes.kamaji.clastix.io"}, names); diff != "" {
		t.Errorf("CRDs (-want +got):\n%s", diff)
	}
}

func TestWriteHooks(t *testing.T) {
	for _, test := range []struct {
		blocked v1alpha1.Permissions
		want    []string
	}{
		{v1alpha1.Permissions{}, nil},
		{v1alpha1.Permissions{BlockUpdate: true}, []string{"catchall.write-permissions.kamaji.clastix.io"}},
		{v1alpha1.Permissions{BlockCreation: true}, []string{"leases.write-permissions.kamaji.clastix.io", "catchall.write-permissions.kamaji.clastix.io"}},
	} {
		var names []string
		for _, hook := range writeHooks(test.blocked).Webhooks {
			names = append(names, hook.Name)
		}
		if diff := cmp.Diff(test.want, names); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", test.blocked, diff)
		}
	}
}
