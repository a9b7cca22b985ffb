package cilium

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"helm.sh/helm/v3/pkg/chartutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

func TestLockKeepsToOneWriter(t *testing.T) {
	client := fake.NewClientset()
	ctx := context.Background()
	unlock, err := lock(ctx, client, nil)
	if err != nil {
		t.Fatal(err)
	}
	soon, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	told := ""
	if _, err := lock(soon, client, func(text string) { told = text }); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(told, "another writer") {
		t.Errorf("got %v, told %q", err, told)
	}
	unlock()
	second, err := lock(ctx, client, nil)
	if err != nil {
		t.Fatalf("after it was given back: %v", err)
	}
	defer second()
	lease, err := client.CoordinationV1().Leases(Namespace).Get(ctx, lockName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// Its writer died: nobody renews it.
	past := metav1.NewMicroTime(time.Now().Add(-lockTTL - time.Second))
	lease.Spec.RenewTime = &past
	if _, err := client.CoordinationV1().Leases(Namespace).Update(ctx, lease, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	third, err := lock(ctx, client, nil)
	if err != nil {
		t.Fatalf("after it expired: %v", err)
	}
	third()
}

func TestBrokenKubeconfigStaysHidden(t *testing.T) {
	_, err := New(nil).Apply(context.Background(), []byte("token: s3cret\n\t"), &Chart{}, nil, nil)
	if err == nil || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("got %v", err)
	}
}

func TestChartFromRepository(t *testing.T) {
	folder := t.TempDir()
	archive, err := chartutil.Save(testChart(t).inner, folder)
	if err != nil {
		t.Fatal(err)
	}
	index := "apiVersion: v1\nentries:\n  cilium:\n  - {name: cilium, version: 1.20.2, urls: [charts/" + filepath.Base(archive) + "]}\n"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/stable/index.yaml":
			_, _ = w.Write([]byte(index))
		case "/stable/charts/" + filepath.Base(archive):
			data, _ := os.ReadFile(archive)
			_, _ = w.Write(data)
		default:
			http.NotFound(w, r)
		}
	}))
	defer server.Close()
	ctx := context.Background()
	c, err := LoadChart(ctx, ChartRef{Repository: server.URL + "/stable", Name: "cilium", Version: "1.20.2"})
	if err != nil || c.Version() != "1.20.2" {
		t.Fatalf("got %v", err)
	}
	for name, ref := range map[string]ChartRef{
		"no repository": {Repository: server.URL, Name: "cilium", Version: "1.20.2"},
		"no version":    {Repository: server.URL + "/stable", Name: "cilium", Version: "1.20.3"},
	} {
		if _, err := LoadChart(ctx, ref); !errors.Is(err, ErrChart) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func node(name string, ready corev1.ConditionStatus, taints ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}}}
	for _, key := range taints {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key})
	}
	return n
}

func pod(name, onNode string, labels map[string]string, ready corev1.ConditionStatus) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: Namespace, Labels: labels}, Spec: corev1.PodSpec{NodeName: onNode},
		Status: corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}},
	}
}

func TestObserve(t *testing.T) {
	agent, operator := map[string]string{"k8s-app": "cilium"}, map[string]string{"name": "cilium-operator"}
	waiting := pod("cilium-2", "w2", agent, corev1.ConditionFalse)
	waiting.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "config", RestartCount: 2, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}}}
	client := fake.NewClientset(
		node("w1", corev1.ConditionTrue), node("w2", corev1.ConditionFalse, TaintKey), node("w3", corev1.ConditionTrue, TaintKey), node("w4", corev1.ConditionFalse),
		pod("cilium-1", "w1", agent, corev1.ConditionTrue), waiting, pod("cilium-3", "w3", agent, corev1.ConditionTrue),
		pod("operator", "w1", operator, corev1.ConditionTrue),
	)
	got, err := Observe(context.Background(), client)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.MissingCRDs) != 4 || !got.OperatorReady || !strings.Contains(got.Waits(), "ciliumnodes") {
		t.Errorf("without CRDs: %+v", got)
	}
	client.Resources = []*metav1.APIResourceList{{GroupVersion: "cilium.io/v2", APIResources: []metav1.APIResource{
		{Name: "ciliumnodes"}, {Name: "ciliumendpoints"}, {Name: "ciliumidentities"}, {Name: "ciliumnetworkpolicies"},
	}}}
	if got, err = Observe(context.Background(), client); err != nil || len(got.MissingCRDs) != 0 {
		t.Fatalf("with CRDs: %+v and %v", got, err)
	}
	for name, text := range map[string]string{
		"w1": "", "w2": "init container config waits (CrashLoopBackOff): it does not reach the API server",
		"w3": "remove the taint", "w4": "its pod is not made yet",
	} {
		n, ok := got.Node(name)
		if !ok || n.Usable() != (text == "") || text == "" && n.Waits() != "" || !strings.Contains(n.Waits(), text) {
			t.Errorf("%s: usable %t, waits for %q, want %q", name, n.Usable(), n.Waits(), text)
		}
	}
	if !strings.Contains(got.Waits(), "w2") {
		t.Errorf("the whole waits for %q", got.Waits())
	}
	if empty, err := Observe(context.Background(), fake.NewClientset()); err != nil || empty.Waits() != "" {
		t.Errorf("without nodes: %q and %v", empty.Waits(), err)
	}
}
