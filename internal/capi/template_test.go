package capi

import (
	"encoding/json"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"aether.internal/aether/api/v1alpha1"
)

func template(class string) *v1alpha1.AetherMachineTemplate {
	t := &v1alpha1.AetherMachineTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant-demo", Name: "demo-workers"}}
	t.Spec.Template.Spec = v1alpha1.AetherMachineSpec{Pool: "workers", Class: class, Host: "pv1-1"}
	return t
}

// TestTheAutoscalerCanReadTheTemplate: it reads both maps as texts, and one
// value of another type voids all of them without a word.
func TestTheAutoscalerCanReadTheTemplate(t *testing.T) {
	w := newWorld(t, template("small"))
	r := &templateReconciler{client: w.client, site: w.site}
	key := client.ObjectKey{Namespace: "tenant-demo", Name: "demo-workers"}
	var seen []string
	for range 2 {
		if _, err := r.Reconcile(t.Context(), request(key)); err != nil {
			t.Fatal(err)
		}
		object := &v1alpha1.AetherMachineTemplate{}
		w.get(key, object)
		seen = append(seen, object.ResourceVersion)
		data, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		content := map[string]any{}
		if err := json.Unmarshal(data, &content); err != nil {
			t.Fatal(err)
		}
		capacity, found, err := unstructured.NestedStringMap(content, "status", "capacity")
		if err != nil || !found {
			t.Fatalf("capacity: %t, %v in %s", found, err, data)
		}
		for name, want := range map[string]string{"cpu": "2", "memory": "1808Mi", "ephemeral-storage": "16Gi", "pods": "110"} {
			if capacity[name] != want {
				t.Errorf("%s: got %q, want %q", name, capacity[name], want)
			}
		}
		info, found, err := unstructured.NestedStringMap(content, "status", "nodeInfo")
		if err != nil || !found || info["architecture"] != "amd64" || info["operatingSystem"] != "linux" {
			t.Errorf("node info %v, %t, %v", info, found, err)
		}
	}
	if seen[0] != seen[1] {
		t.Error("it is written again although nothing changed")
	}
}

func TestATemplateOfAnUnknownClassIsAnError(t *testing.T) {
	w := newWorld(t, template("huge"))
	r := &templateReconciler{client: w.client, site: w.site}
	if _, err := r.Reconcile(t.Context(), request(client.ObjectKey{Namespace: "tenant-demo", Name: "demo-workers"})); err == nil {
		t.Error("no error")
	}
	if _, err := r.Reconcile(t.Context(), request(client.ObjectKey{Namespace: "tenant-demo", Name: "other"})); err != nil {
		t.Errorf("one that is gone: %v", err)
	}
}
