package kamaji_test

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"aether.internal/aether/lab/faults"
	"aether.internal/aether/lab/kamaji"
	"aether.internal/aether/lab/kamaji/kamajitest"
	"aether.internal/aether/lab/kamaji/v1alpha1"
)

func TestMain(m *testing.M) { os.Exit(kamajitest.Main(m)) }

// soon is generous: the machine may be busy.
const soon = 30 * time.Second

// TestWithoutPods has no node: control planes get as far as NotReady.
func TestWithoutPods(t *testing.T) {
	w := kamajitest.Start(t, kamajitest.Options{})
	w.Namespace("tenants")
	t.Run("refusals", func(t *testing.T) { testRefusals(t, w) })
	t.Run("defaults", func(t *testing.T) { testDefaults(t, w) })
	t.Run("updates", func(t *testing.T) { testUpdates(t, w) })
	t.Run("walk", func(t *testing.T) { testWalk(t, w) })
	t.Run("silence", func(t *testing.T) { testSilence(t, w) })
	t.Run("changes", func(t *testing.T) { testChanges(t, w) })
	t.Run("konnectivity", func(t *testing.T) { testKonnectivity(t, w) })
	t.Run("datastore away", func(t *testing.T) { testStoreAway(t, w) })
	t.Run("kamaji away", func(t *testing.T) { testKamajiAway(t, w) })
}

func testUpdates(t *testing.T, w *kamajitest.World) {
	tcp := w.Tenant("tenants", "updated", func(tcp *v1alpha1.TenantControlPlane) {
		tcp.Spec.ControlPlane.Deployment.Replicas = ptr.To[int32](0)
		tcp.Spec.DataStoreSchema, tcp.Spec.DataStoreUsername = "schema", "user"
	})
	if err := w.API.Create(t.Context(), tcp); err != nil {
		t.Fatal(err)
	}
	eventually(t, "Sleeping", func() bool { return word(w, tcp) == v1alpha1.VersionSleeping })
	for _, test := range []struct{ name, patch, want string }{
		{"newer than supported", `{"spec":{"kubernetes":{"version":"v1.37.0"}}}`, "unable to upgrade to a version greater than the supported one (v1.36)"},
		{"downgrade", `{"spec":{"kubernetes":{"version":"v1.34.0"}}}`, "unable to downgrade a TenantControlPlane from 1.35.0 to 1.34.0"},
		{"patch down", `{"spec":{"kubernetes":{"version":"v1.35.0"}}}`, ""},
		{"unset datastore", `{"spec":{"dataStore":null}}`, "unsetting the dataStore is not supported"},
		{"change schema", `{"spec":{"dataStoreSchema":"yyy"}}`, "changing the dataStoreSchema is not supported"},
		{"change domain", `{"spec":{"networkProfile":{"clusterDomain":"x.local"}}}`, "changing the cluster domain is not supported"},
		{"change address", `{"spec":{"networkProfile":{"address":"127.30.0.11"}}}`, ""},
	} {
		err := w.API.Patch(t.Context(), w.Tenant("tenants", "updated", nil), client.RawPatch("application/merge-patch+json", []byte(test.patch)), client.DryRunAll)
		if (err == nil) != (test.want == "") || (err != nil && !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: answer %v, want %q", test.name, err, test.want)
		}
	}
	if err := w.API.Delete(t.Context(), tcp); err != nil {
		t.Fatal(err)
	}
	eventually(t, "deleted", func() bool { return w.Get(t.Context(), "tenants", "updated") == nil })
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(soon); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if holds() {
			return
		}
	}
	t.Fatalf("not within %s: %s", soon, what)
}

func word(w *kamajitest.World, tcp *v1alpha1.TenantControlPlane) v1alpha1.KubernetesVersionStatus {
	if got := w.Get(context.Background(), tcp.Namespace, tcp.Name); got != nil {
		return got.Status.Kubernetes.Version.Status
	}
	return ""
}

// testWalk records the order in which the objects appear.
func testWalk(t *testing.T, w *kamajitest.World) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	words, births := followWords(ctx, t, w, "tenants", "t1"), followBirths(ctx, t, w, "tenants", "t1")
	object := sent("t1")
	set(object.Object, "10.1.1.10", "spec", "networkProfile", "advertiseAddress")
	set(object.Object, []any{"api.t1.example.test"}, "spec", "networkProfile", "certSANs")
	if err := w.API.Create(ctx, object); err != nil {
		t.Fatal(err)
	}
	if object.GetGeneration() != 1 {
		t.Errorf("generation at birth = %d, want 1", object.GetGeneration())
	}
	eventually(t, "the first pass ends", func() bool { return w.Get(ctx, "tenants", "t1").Status.ObservedGeneration > 0 })
	tcp := w.Get(ctx, "tenants", "t1")
	if tcp.Generation != 2 || tcp.Status.ObservedGeneration != 2 {
		t.Errorf("generation %d observed %d, want 2 and 2", tcp.Generation, tcp.Status.ObservedGeneration)
	}
	if diff := cmp.Diff([]string{"", "Provisioning", "NotReady"}, words()); diff != "" {
		t.Errorf("status words (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(secretKeys(), keysOf(t, w, "t1")); diff != "" {
		t.Errorf("secrets (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(order(), births()); diff != "" {
		t.Errorf("order of creation (-want +got):\n%s", diff)
	}
	checkCertificate(t, w)
	checkServers(t, w, "https://10.1.1.10:6443")
	checkDeployment(t, w)
	// The Deployment's own status still moves for a moment; then nothing does.
	eventually(t, "two seconds without a write", func() bool {
		before := w.Get(ctx, "tenants", "t1").ResourceVersion
		time.Sleep(2 * time.Second)
		return w.Get(ctx, "tenants", "t1").ResourceVersion == before
	})
}

func secretKeys() map[string]string {
	return map[string]string{
		"t1-ca":                                    "ca.crt ca.key tls.crt tls.key",
		"t1-front-proxy-ca-certificate":            "front-proxy-ca.crt front-proxy-ca.key",
		"t1-sa-certificate":                        "sa.key sa.pub",
		"t1-api-server-certificate":                "apiserver.crt apiserver.key",
		"t1-api-server-kubelet-client-certificate": "apiserver-kubelet-client.crt apiserver-kubelet-client.key",
		"t1-front-proxy-client-certificate":        "front-proxy-client.crt front-proxy-client.key",
		"t1-admin-kubeconfig":                      "admin.conf admin.svc super-admin.conf super-admin.svc",
		"t1-controller-manager-kubeconfig":         "controller-manager.conf",
		"t1-scheduler-kubeconfig":                  "scheduler.conf",
		"t1-datastore-config":                      "DB_CONNECTION_STRING DB_PASSWORD DB_SCHEMA DB_USER",
		"t1-datastore-certificate":                 "ca.crt server.crt server.key",
	}
}

func order() []string {
	return []string{
		"t1", "t1-kubeadmconfig", "t1-ca", "t1-front-proxy-ca-certificate", "t1-sa-certificate", "t1-api-server-certificate",
		"t1-api-server-kubelet-client-certificate", "t1-front-proxy-client-certificate", "t1-admin-kubeconfig",
		"t1-controller-manager-kubeconfig", "t1-scheduler-kubeconfig", "t1-datastore-config", "t1-datastore-certificate", "t1",
	}
}

// owned lists what was made for a control plane.
func owned(t *testing.T, w *kamajitest.World, name string) []client.Object {
	t.Helper()
	var all []client.Object
	match := []client.ListOption{client.InNamespace("tenants"), client.MatchingLabels{"kamaji.clastix.io/name": name, "kamaji.clastix.io/project": "kamaji"}}
	secrets, configs, services, deployments := &corev1.SecretList{}, &corev1.ConfigMapList{}, &corev1.ServiceList{}, &appsv1.DeploymentList{}
	for _, into := range []client.ObjectList{secrets, configs, services, deployments} {
		if err := w.API.List(t.Context(), into, match...); err != nil {
			t.Fatal(err)
		}
	}
	for i := range secrets.Items {
		all = append(all, &secrets.Items[i])
	}
	for i := range configs.Items {
		all = append(all, &configs.Items[i])
	}
	for i := range services.Items {
		all = append(all, &services.Items[i])
	}
	for i := range deployments.Items {
		all = append(all, &deployments.Items[i])
	}
	return all
}

func keysOf(t *testing.T, w *kamajitest.World, name string) map[string]string {
	t.Helper()
	keys := map[string]string{}
	for _, object := range owned(t, w, name) {
		secret, ok := object.(*corev1.Secret)
		if !ok {
			continue
		}
		keys[secret.Name] = strings.Join(slices.Sorted(maps.Keys(secret.Data)), " ")
		if secret.Annotations["kamaji.clastix.io/checksum"] == "" || !metav1.IsControlledBy(secret, w.Get(t.Context(), "tenants", name)) {
			t.Errorf("secret %s lacks checksum or owner", secret.Name)
		}
	}
	return keys
}

func secret(t *testing.T, w *kamajitest.World, name string) *corev1.Secret {
	t.Helper()
	s := &corev1.Secret{}
	if err := w.API.Get(t.Context(), client.ObjectKey{Namespace: "tenants", Name: name}, s); err != nil {
		t.Fatal(err)
	}
	return s
}

func certificate(t *testing.T, w *kamajitest.World) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(secret(t, w, "t1-api-server-certificate").Data["apiserver.crt"])
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func checkCertificate(t *testing.T, w *kamajitest.World) {
	t.Helper()
	cert := certificate(t, w)
	want := []string{
		"api.t1.example.test", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
		"localhost", "node", "t1", "t1.tenants.svc", "t1.tenants.svc.cluster.local",
	}
	if diff := cmp.Diff(want, cert.DNSNames); diff != "" {
		t.Errorf("names of the certificate (-want +got):\n%s", diff)
	}
	for _, address := range []string{"10.112.0.1", "10.1.1.10", "127.0.0.1"} {
		if err := cert.VerifyHostname(address); err != nil {
			t.Error(err)
		}
	}
}

func checkServers(t *testing.T, w *kamajitest.World, public string) {
	t.Helper()
	want := map[string]string{
		"admin.conf": public, "super-admin.conf": public,
		"admin.svc": "https://t1.tenants.svc:6443", "super-admin.svc": "https://t1.tenants.svc:6443",
	}
	got := map[string]string{}
	for key, data := range secret(t, w, "t1-admin-kubeconfig").Data {
		config, err := clientcmd.Load(data)
		if err != nil {
			t.Fatal(err)
		}
		got[key] = config.Clusters["t1"].Server
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("servers (-want +got):\n%s", diff)
	}
}

func checkDeployment(t *testing.T, w *kamajitest.World) {
	t.Helper()
	args := apiServerArguments(t, w)
	if !slices.IsSorted(args) {
		t.Errorf("arguments are not sorted: %v", args)
	}
	tcp := w.Get(t.Context(), "tenants", "t1")
	for _, want := range []string{"--advertise-address=10.1.1.10", "--etcd-prefix=/" + string(tcp.UID), "--etcd-servers=https://192.168.0.2:2389", "--secure-port=6443"} {
		if !slices.Contains(args, want) {
			t.Errorf("argument %s is missing in %v", want, args)
		}
	}
	if slices.ContainsFunc(args, func(a string) bool { return strings.Contains(a, "NodeRestriction") }) {
		t.Error("NodeRestriction is on by itself; the real one leaves it out")
	}
}

func apiServerArguments(t *testing.T, w *kamajitest.World) []string {
	t.Helper()
	deployment := &appsv1.Deployment{}
	if err := w.API.Get(t.Context(), client.ObjectKey{Namespace: "tenants", Name: "t1"}, deployment); err != nil {
		t.Fatal(err)
	}
	return deployment.Spec.Template.Spec.Containers[0].Args
}

// testSilence makes control planes that cannot be reconciled.
func testSilence(t *testing.T, w *kamajitest.World) {
	for name, change := range map[string]func(*v1alpha1.TenantControlPlane){
		"nodeport": func(tcp *v1alpha1.TenantControlPlane) { tcp.Spec.ControlPlane.Service.ServiceType = "NodePort" },
		"highport": func(tcp *v1alpha1.TenantControlPlane) { tcp.Spec.NetworkProfile.Port = 70000 },
		"balancer": func(tcp *v1alpha1.TenantControlPlane) { tcp.Spec.ControlPlane.Service.ServiceType = "LoadBalancer" },
	} {
		if err := w.API.Create(t.Context(), w.Tenant("tenants", name, change)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.API.Create(t.Context(), w.Tenant("tenants", "hostname", func(tcp *v1alpha1.TenantControlPlane) { tcp.Spec.NetworkProfile.Address = "api.example.test" })); err != nil {
		t.Fatal(err)
	}
	hostname := w.Tenant("tenants", "hostname", nil)
	eventually(t, "Provisioning", func() bool { return word(w, hostname) == v1alpha1.VersionProvisioning })
	time.Sleep(time.Second)
	for _, name := range []string{"nodeport", "highport", "balancer"} {
		if diff := cmp.Diff(v1alpha1.TenantControlPlaneStatus{}, w.Get(t.Context(), "tenants", name).Status); diff != "" {
			t.Errorf("%s: status is not empty (-want +got):\n%s", name, diff)
		}
	}
	if len(owned(t, w, "balancer")) != 1 {
		t.Error("without an address there is more than the Service")
	}
	if got := word(w, hostname); got != v1alpha1.VersionProvisioning {
		t.Errorf("address a host name: status %s, want to be stuck at Provisioning", got)
	}
}

// testChanges goes through what a change does and does not do.
func testChanges(t *testing.T, w *kamajitest.World) {
	patch := func(text string) {
		t.Helper()
		if err := w.API.Patch(t.Context(), w.Tenant("tenants", "t1", nil), client.RawPatch("application/merge-patch+json", []byte(text))); err != nil {
			t.Fatal(err)
		}
	}
	observed := func() {
		t.Helper()
		eventually(t, "the change is observed", func() bool {
			tcp := w.Get(t.Context(), "tenants", "t1")
			return tcp.Status.ObservedGeneration == tcp.Generation
		})
	}
	serial := certificate(t, w).SerialNumber
	patch(`{"spec":{"networkProfile":{"certSANs":[]}}}`)
	observed()
	if certificate(t, w).SerialNumber.Cmp(serial) != 0 {
		t.Error("removing a name renewed the certificate")
	}
	patch(`{"spec":{"networkProfile":{"certSANs":["more.example.test"]}}}`)
	observed()
	if err := certificate(t, w).VerifyHostname("more.example.test"); err != nil {
		t.Error(err)
	}
	patch(`{"spec":{"networkProfile":{"address":"127.30.0.99"}}}`)
	observed()
	if got := w.Get(t.Context(), "tenants", "t1").Status.ControlPlaneEndpoint; strings.HasPrefix(got, "127.30") {
		t.Errorf("changing address moved the endpoint to %s", got)
	}
	patch(`{"spec":{"networkProfile":{"advertiseAddress":"10.1.1.11"}}}`)
	eventually(t, "the certificate covers the new address", func() bool { return certificate(t, w).VerifyHostname("10.1.1.11") == nil })
	if !slices.Contains(apiServerArguments(t, w), "--advertise-address=10.1.1.11") {
		t.Error("the flag did not follow")
	}
	checkServers(t, w, "https://10.1.1.10:6443") // the old one stays
	if err := w.API.Delete(t.Context(), secret(t, w, "t1-admin-kubeconfig")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the kubeconfigs are made anew", func() bool {
		s := &corev1.Secret{}
		return w.API.Get(t.Context(), client.ObjectKey{Namespace: "tenants", Name: "t1-admin-kubeconfig"}, s) == nil && len(s.Data) == 4
	})
	checkServers(t, w, "https://10.1.1.11:6443")
	checkRotation(t, w)
}

func checkRotation(t *testing.T, w *kamajitest.World) {
	t.Helper()
	front, old := secret(t, w, "t1-front-proxy-ca-certificate").Data, string(secret(t, w, "t1-ca").Data["ca.crt"])
	if err := w.API.Delete(t.Context(), secret(t, w, "t1-ca")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all trust the new authority", func() bool {
		s := &corev1.Secret{}
		if w.API.Get(t.Context(), client.ObjectKey{Namespace: "tenants", Name: "t1-ca"}, s) != nil || string(s.Data["ca.crt"]) == old {
			return false
		}
		for _, data := range secret(t, w, "t1-admin-kubeconfig").Data {
			config, err := clientcmd.Load(data)
			if err != nil || string(config.Clusters["t1"].CertificateAuthorityData) != string(s.Data["ca.crt"]) {
				return false
			}
		}
		return true
	})
	if diff := cmp.Diff(front, secret(t, w, "t1-front-proxy-ca-certificate").Data); diff != "" {
		t.Error("the front proxy's authority was made anew too")
	}
}

func testStoreAway(t *testing.T, w *kamajitest.World) {
	id, err := w.Faults.Inject(faults.Fault{Kind: faults.Away, Place: kamaji.PlaceDataStore})
	if err != nil {
		t.Fatal(err)
	}
	tcp := w.Tenant("tenants", "unstored", nil)
	if err := w.API.Create(t.Context(), tcp); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the datastore's Secret", func() bool {
		got := w.Get(t.Context(), "tenants", "unstored")
		return got != nil && got.Status.Storage.Config.SecretName != ""
	})
	time.Sleep(500 * time.Millisecond)
	got := w.Get(t.Context(), "tenants", "unstored")
	if got.Status.Kubernetes.Version.Status != v1alpha1.VersionProvisioning || got.Status.Storage.Setup.Schema != "" {
		t.Errorf("with the datastore away: status %s, schema %q", got.Status.Kubernetes.Version.Status, got.Status.Storage.Setup.Schema)
	}
	w.Faults.Clear(id)
	eventually(t, "the rest follows", func() bool { return word(w, tcp) == v1alpha1.VersionNotReady })
}

func testKamajiAway(t *testing.T, w *kamajitest.World) {
	id, err := w.Faults.Inject(faults.Fault{Kind: faults.Away, Place: kamaji.PlaceManager})
	if err != nil {
		t.Fatal(err)
	}
	const refused = `failed calling webhook "mtenantcontrolplane.kb.io": failed to call webhook: Post `
	eventually(t, "the webhooks refuse", func() bool {
		err := w.API.Create(t.Context(), w.Tenant("tenants", "nobody", nil), client.DryRunAll)
		return err != nil && strings.Contains(err.Error(), refused)
	})
	if err := w.API.Delete(t.Context(), w.Tenant("tenants", "t1", nil)); err != nil {
		t.Fatal(err)
	}
	time.Sleep(500 * time.Millisecond)
	if tcp := w.Get(t.Context(), "tenants", "t1"); tcp == nil || !slices.Contains(tcp.Finalizers, "finalizer.kamaji.clastix.io") {
		t.Error("the deletion went on without Kamaji")
	}
	w.Faults.Clear(id)
	eventually(t, "the object and all it owned are gone", func() bool {
		return w.Get(t.Context(), "tenants", "t1") == nil && len(owned(t, w, "t1")) == 0
	})
}
