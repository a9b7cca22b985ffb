package kamaji_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"aether.internal/aether/internal/kamaji"
)

const balancer = "192.168.0.100"

// scene is a management cluster in which everything is as it should be.
type scene struct {
	t          *testing.T
	ca         *authority
	tcp, store *unstructured.Unstructured
	service    *corev1.Service
	deployment *appsv1.Deployment
	secrets    map[string]*corev1.Secret
	tenant     *fakeTenant
	now        time.Time // stands still
}

func newScene(t *testing.T) *scene {
	t.Helper()
	s := &scene{t: t, ca: newAuthority(t), secrets: map[string]*corev1.Secret{}, now: time.Now().Truncate(time.Second)}
	meta := metav1.ObjectMeta{Namespace: "tenant-t1", Name: "t1"}
	s.tcp = object("TenantControlPlane", "tenant-t1", "t1", map[string]any{
		"spec": map[string]any{
			"dataStore": "default", "kubernetes": map[string]any{"version": "v1.35.4"},
			"networkProfile": map[string]any{"advertiseAddress": "10.1.1.10", "port": int64(6443)},
		},
		"status": map[string]any{
			"observedGeneration":  int64(2),
			"kubernetesResources": map[string]any{"version": map[string]any{"status": "Ready", "version": "v1.35.4"}},
			"addons":              map[string]any{"konnectivity": map[string]any{"enabled": true}},
		},
	})
	s.tcp.SetGeneration(2)
	s.tcp.SetCreationTimestamp(metav1.NewTime(s.now.Add(-time.Minute)))
	s.store = object("DataStore", "", "default", map[string]any{"status": map[string]any{"ready": true}})
	s.service = &corev1.Service{ObjectMeta: meta, Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: balancer}}}}}
	s.deployment = &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](1)}, Status: appsv1.DeploymentStatus{Replicas: 1, UpdatedReplicas: 1, AvailableReplicas: 1}}
	s.deployment.Spec.Template.Spec.Containers = []corev1.Container{{Name: "kube-apiserver", Args: []string{"--enable-admission-plugins=LimitRanger,NodeRestriction"}}}
	s.secret("ca", map[string][]byte{"ca.crt": s.ca.pem})
	s.secret("admin-kubeconfig", map[string][]byte{
		"admin.conf":       s.ca.kubeconfig("https://10.1.1.10:6443", "kubernetes-admin"),
		"super-admin.conf": s.ca.kubeconfig("https://10.1.1.10:6443", "kubernetes-super-admin"),
	})
	serving, _ := s.ca.issue("kube-apiserver", "10.1.1.10", balancer, "t1.tenant-t1.svc")
	s.secret("api-server-certificate", map[string][]byte{"apiserver.crt": serving})
	s.tenant = newFakeTenant(t, s.ca, "10.1.1.10", balancer, "t1.tenant-t1.svc")
	return s
}

func object(kind, namespace, name string, content map[string]any) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: content}
	o.SetGroupVersionKind(schema.GroupVersionKind{Group: "kamaji.clastix.io", Version: "v1alpha1", Kind: kind})
	o.SetNamespace(namespace)
	o.SetName(name)
	return o
}

func (s *scene) secret(suffix string, data map[string][]byte) {
	s.secrets[suffix] = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant-t1", Name: "t1-" + suffix}, Data: data}
}

func (s *scene) api() client.WithWatch {
	objects := []client.Object{}
	for _, o := range []client.Object{s.tcp, s.store} {
		if o.GetName() != "" {
			objects = append(objects, o)
		}
	}
	if s.service != nil {
		objects = append(objects, s.service)
	}
	if s.deployment != nil {
		objects = append(objects, s.deployment)
	}
	for _, secret := range s.secrets {
		objects = append(objects, secret)
	}
	return fake.NewClientBuilder().WithObjects(objects...).Build()
}

func (s *scene) client() *kamaji.Client {
	s.t.Helper()
	c, err := kamaji.New(s.api(), kamaji.Options{Dial: s.tenant.dial, Now: func() time.Time { return s.now }})
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

func set(o *unstructured.Unstructured, value any, path ...string) {
	if err := unstructured.SetNestedField(o.Object, value, path...); err != nil {
		panic(err)
	}
}

func TestCheck(t *testing.T) {
	tenantSide := []kamaji.Need{
		kamaji.NeedControllerManager, kamaji.NeedScheduler, kamaji.NeedAdminRights, kamaji.NeedPublished,
		kamaji.NeedClusterInfo, kamaji.NeedJoinRights, kamaji.NeedDNS, kamaji.NeedTunnel,
	}
	unreached := append([]kamaji.Need{kamaji.NeedCertificate, kamaji.NeedAPIServer}, tenantSide...)
	for _, test := range []struct {
		name   string
		change func(*scene)
		unmet  []kamaji.Need
		reason string // of the first
	}{
		{"all is there", func(*scene) {}, nil, ""},
		{"Kamaji says nothing", func(s *scene) { s.service, s.deployment, s.secrets = nil, nil, nil; delete(s.tcp.Object, "status") }, append([]kamaji.Need{kamaji.NeedAddress, kamaji.NeedReconciled, kamaji.NeedPods, kamaji.NeedNodeRestriction}, unreached...), "Kamaji has not made Service tenant-t1/t1 in 1m0s"},
		{"datastore broken", func(s *scene) {
			set(s.store, false, "status", "ready")
			set(s.store, []any{map[string]any{"type": "x", "status": "False", "message": "secret kamaji-system/nosuch is not found"}}, "status", "conditions")
		}, []kamaji.Need{kamaji.NeedDataStore}, "secret kamaji-system/nosuch is not found"},
		{"datastore missing", func(s *scene) { set(s.tcp, "nope", "spec", "dataStore") }, []kamaji.Need{kamaji.NeedDataStore}, `"nope" does not exist`},
		{"no load balancer", func(s *scene) { s.service.Status.LoadBalancer.Ingress = nil }, append([]kamaji.Need{kamaji.NeedAddress}, unreached...), "has no load balancer address after 1m0s"},
		{"stale Ready", func(s *scene) { s.tcp.SetGeneration(3) }, []kamaji.Need{kamaji.NeedReconciled}, "generation 2 of 3"},
		{"upgrading", func(s *scene) { set(s.tcp, "Upgrading", "status", "kubernetesResources", "version", "status") }, []kamaji.Need{kamaji.NeedReconciled}, "Upgrading"},
		{"old version", func(s *scene) { set(s.tcp, "v1.35.3", "status", "kubernetesResources", "version", "version") }, []kamaji.Need{kamaji.NeedReconciled}, "v1.35.3 runs"},
		{"rolling", func(s *scene) { s.deployment.Status.Replicas = 2 }, []kamaji.Need{kamaji.NeedPods}, "1 of 1 replicas available, 1 updated, 2 in all"},
		{"without NodeRestriction", func(s *scene) {
			s.deployment.Spec.Template.Spec.Containers[0].Args = []string{"--enable-admission-plugins=LimitRanger"}
		}, []kamaji.Need{kamaji.NeedNodeRestriction}, "started without NodeRestriction"},
		{"certificate without proxy", func(s *scene) { s.tenant.api = serve(s.t, s.ca, s.tenant.api.Config.Handler, balancer) }, []kamaji.Need{kamaji.NeedCertificate}, "not good for the proxy's address 10.1.1.10"},
		{"API server away", func(s *scene) { s.tenant.api.Close() }, unreached, "not good for"},
		{"manager never reached it", func(s *scene) { delete(s.tenant.objects, leases+"kube-controller-manager") }, []kamaji.Need{kamaji.NeedControllerManager}, "does not reach the API server"},
		{"scheduler stopped", func(s *scene) { s.tenant.objects[leases+"kube-scheduler"] = lease(10 * time.Minute) }, []kamaji.Need{kamaji.NeedScheduler}, "last renewed its lease"},
		{"no rights yet", func(s *scene) { s.tenant.forbidden = true }, []kamaji.Need{kamaji.NeedAdminRights}, "kubeadm:cluster-admins is missing"},
		{"old server in admin.conf", func(s *scene) {
			s.secrets["admin-kubeconfig"].Data["admin.conf"] = s.ca.kubeconfig("https://10.1.1.9:6443", "kubernetes-admin")
		}, []kamaji.Need{kamaji.NeedPublished}, "names server https://10.1.1.9:6443, not https://10.1.1.10:6443"},
		{"no cluster-info", func(s *scene) { delete(s.tenant.objects, infoPath) }, []kamaji.Need{kamaji.NeedClusterInfo}, "is missing"},
		{"old server in cluster-info", func(s *scene) { s.tenant.objects[infoPath] = clusterInfo(s.t, "https://10.1.1.9:6443", s.ca.pem) }, []kamaji.Need{kamaji.NeedClusterInfo}, "10.1.1.9"},
		{"old authority in cluster-info", func(s *scene) {
			s.tenant.objects[infoPath] = clusterInfo(s.t, "https://10.1.1.10:6443", newAuthority(s.t).pem)
		}, []kamaji.Need{kamaji.NeedClusterInfo}, "another authority"},
		{"join rights", func(s *scene) { delete(s.tenant.objects, bindings+"kubeadm:apiserver-kubelet-client") }, []kamaji.Need{kamaji.NeedJoinRights}, "kubeadm:apiserver-kubelet-client"},
		{"no DNS", func(s *scene) { delete(s.tenant.objects, "/api/v1/namespaces/kube-system/services/kube-dns") }, []kamaji.Need{kamaji.NeedDNS}, "kube-dns"},
		{"no tunnel", func(s *scene) { s.tenant.tunnel = false }, []kamaji.Need{kamaji.NeedTunnel}, "port 8132"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newScene(t)
			test.change(s)
			report, err := s.client().Check(t.Context(), spec().Ref, kamaji.WantOf(spec()))
			if err != nil {
				t.Fatal(err)
			}
			var unmet []kamaji.Need
			for _, finding := range report.Unmet() {
				unmet = append(unmet, finding.Need)
			}
			if diff := cmp.Diff(test.unmet, unmet); diff != "" {
				t.Errorf("unmet (-want +got):\n%s\n%s", diff, report)
			}
			if report.Ready() != (len(test.unmet) == 0) {
				t.Errorf("Ready() = %t", report.Ready())
			}
			if len(unmet) > 0 && !strings.Contains(report.Unmet()[0].Reason, test.reason) {
				t.Errorf("reason %q, want %q in it", report.Unmet()[0].Reason, test.reason)
			}
		})
	}
}

// TestCannotAskIsNotUnmet: an unreachable management cluster judges nothing.
func TestCannotAskIsNotUnmet(t *testing.T) {
	s := newScene(t)
	api := interceptor.NewClient(s.api(), interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, into client.Object, o ...client.GetOption) error {
			if _, ok := into.(*corev1.Secret); ok {
				return context.DeadlineExceeded
			}
			return c.Get(ctx, key, into, o...)
		},
	})
	c, err := kamaji.New(api, kamaji.Options{Dial: s.tenant.dial})
	if err != nil {
		t.Fatal(err)
	}
	report, err := c.Check(t.Context(), spec().Ref, kamaji.WantOf(spec()))
	if !errors.Is(err, kamaji.ErrUnavailable) || len(report.Findings) != 0 {
		t.Errorf("report %v, error %v", report, err)
	}
	if _, err := newScene(t).client().Check(t.Context(), kamaji.Ref{Namespace: "x", Name: "y"}, kamaji.WantOf(spec())); !errors.Is(err, kamaji.ErrNotFound) {
		t.Errorf("check of nothing: %v", err)
	}
}

func TestKubeconfigs(t *testing.T) {
	for _, test := range []struct {
		name       string
		change     func(*scene)
		want       error
		serverName string
	}{
		{"both", func(*scene) {}, nil, ""},
		{"certificate without the balancer", func(s *scene) {
			serving, _ := s.ca.issue("kube-apiserver", "10.1.1.10", "t1.tenant-t1.svc")
			s.secret("api-server-certificate", map[string][]byte{"apiserver.crt": serving})
		}, nil, "t1.tenant-t1.svc"},
		{"not made yet", func(s *scene) { delete(s.secrets, "admin-kubeconfig") }, kamaji.ErrNotFound, ""},
		{"no address yet", func(s *scene) { s.service = nil }, kamaji.ErrNotFound, ""},
		{"stale", func(s *scene) {
			s.secrets["admin-kubeconfig"].Data["admin.conf"] = s.ca.kubeconfig("https://10.1.1.9:6443", "kubernetes-admin")
		}, kamaji.ErrStale, ""},
		{"unreadable", func(s *scene) { s.secrets["admin-kubeconfig"].Data["admin.conf"] = []byte("client-key-data: [secret") }, nil, "-"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newScene(t)
			test.change(s)
			both, err := s.client().Kubeconfigs(t.Context(), spec().Ref, kamaji.WantOf(spec()))
			if test.serverName == "-" {
				if err == nil || strings.Contains(err.Error(), "secret") {
					t.Errorf("error is missing or shows the content: %v", err)
				}
				return
			}
			if !errors.Is(err, test.want) {
				t.Fatalf("error %v, want %v", err, test.want)
			}
			if err != nil {
				return
			}
			published, management := load(t, both.Published), load(t, both.Management)
			if published != (endpoint{"https://10.1.1.10:6443", ""}) || management != (endpoint{"https://" + balancer + ":6443", test.serverName}) {
				t.Errorf("published %+v, management %+v", published, management)
			}
		})
	}
}

type endpoint struct{ server, serverName string }

func load(t *testing.T, kubeconfig kamaji.Kubeconfig) endpoint {
	t.Helper()
	config, err := clientcmd.Load(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	cluster := config.Clusters["t1"]
	return endpoint{cluster.Server, cluster.TLSServerName}
}

func TestRemains(t *testing.T) {
	s := newScene(t)
	s.deployment.OwnerReferences = []metav1.OwnerReference{{Kind: "TenantControlPlane", Name: "t1", UID: "u", APIVersion: "kamaji.clastix.io/v1alpha1"}}
	s.tcp.SetFinalizers([]string{"finalizer.kamaji.clastix.io"})
	deleted := metav1.NewTime(s.now.Add(-90 * time.Second))
	s.tcp.SetDeletionTimestamp(&deleted)
	api := s.api()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant-t1", Name: "t1-abc", Labels: map[string]string{"kamaji.clastix.io/name": "t1"}}}
	if err := api.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	c, err := kamaji.New(api, kamaji.Options{Now: func() time.Time { return s.now }})
	if err != nil {
		t.Fatal(err)
	}
	left, err := c.Remains(t.Context(), spec().Ref)
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, remainder := range left {
		kinds = append(kinds, remainder.Kind)
	}
	if diff := cmp.Diff([]string{"TenantControlPlane", "Deployment", "Pod"}, kinds); diff != "" {
		t.Errorf("remains (-want +got):\n%s", diff)
	}
	if !strings.Contains(left[0].Reason, "1m30s") || !strings.Contains(left[0].Reason, "does its datastore answer") {
		t.Errorf("reason %q does not say how long and what to look at", left[0].Reason)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := c.WaitGone(ctx, spec().Ref, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("wait for what stays: %v", err)
	}
	if none, err := c.Remains(t.Context(), kamaji.Ref{Namespace: "tenant-t1", Name: "other"}); err != nil || len(none) != 0 {
		t.Errorf("remains of nothing: %v, %v", none, err)
	}
}
