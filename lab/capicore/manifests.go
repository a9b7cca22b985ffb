package capicore

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"

	"aether.internal/aether/lab/upstream"
)

const (
	// User is who the manager is to the API server.
	User = "capi-manager"
	// prefix is what an installation puts before the names in the manifests.
	prefix = "capi-"
	// providerLabel marks what belongs to core; clusterctl looks for it.
	providerLabel = "cluster.x-k8s.io/provider"
)

// readManifests decodes all objects of the files, in the order of the names.
func readManifests(files ...string) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read manifest: %w", err)
		}
		documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096)
		for {
			object := &unstructured.Unstructured{}
			err := documents.Decode(object)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return nil, fmt.Errorf("read manifest %s: %w", name, err)
			}
			if len(object.Object) == 0 {
				continue // an empty document
			}
			labels := object.GetLabels()
			if labels == nil {
				labels = map[string]string{}
			}
			labels[providerLabel] = "cluster-api"
			object.SetLabels(labels)
			objects = append(objects, object)
		}
	}
	return objects, nil
}

// crds are core's CustomResourceDefinitions.
func crds(m upstream.CAPIManifests) ([]*unstructured.Unstructured, error) {
	files, err := filepath.Glob(filepath.Join(m.CRDs, "*.yaml"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("folder %s holds no CustomResourceDefinition", m.CRDs)
	}
	slices.Sort(files)
	return readManifests(files...)
}

// roles are the manager's rights: its own and, by aggregation, those that
// other providers' roles grant it. Both are bound: the release binds the
// aggregated one alone, which is empty until the controller-manager has
// looked at it.
func roles(m upstream.CAPIManifests) ([]*unstructured.Unstructured, error) {
	objects, err := readManifests(filepath.Join(m.RBAC, "role.yaml"), filepath.Join(m.RBAC, "aggregated_role.yaml"))
	if err != nil {
		return nil, err
	}
	for _, object := range objects {
		name := prefix + object.GetName()
		object.SetName(name)
		binding := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
			"metadata": map[string]any{"name": name, "labels": map[string]any{providerLabel: "cluster-api"}},
			"roleRef":  map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
			"subjects": []any{map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": User}},
		}}
		objects = append(objects, binding)
	}
	return objects, nil
}

// webhooks are the webhook configurations with the Service replaced by the
// URL of the manager's process.
func webhooks(m upstream.CAPIManifests, at netip.AddrPort, caBundle []byte) ([]*unstructured.Unstructured, error) {
	objects, err := readManifests(m.Webhooks)
	if err != nil {
		return nil, err
	}
	for i, object := range objects {
		object.SetName(prefix + object.GetName())
		changed, err := rewrite(object, func(c *admissionv1.WebhookClientConfig) error {
			if c.Service == nil || c.Service.Path == nil {
				return fmt.Errorf("%s %s names no Service with a path", object.GetKind(), object.GetName())
			}
			url := "https://" + at.String() + *c.Service.Path
			c.Service, c.URL, c.CABundle = nil, &url, caBundle
			return nil
		})
		if err != nil {
			return nil, err
		}
		objects[i] = changed
	}
	return objects, nil
}

// rewrite calls f for each webhook of a configuration.
func rewrite(object *unstructured.Unstructured, f func(*admissionv1.WebhookClientConfig) error) (*unstructured.Unstructured, error) {
	var configs []*admissionv1.WebhookClientConfig
	var typed any
	switch object.GetKind() {
	case "MutatingWebhookConfiguration":
		c := &admissionv1.MutatingWebhookConfiguration{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, c); err != nil {
			return nil, fmt.Errorf("read %s: %w", object.GetName(), err)
		}
		for i := range c.Webhooks {
			configs = append(configs, &c.Webhooks[i].ClientConfig)
		}
		typed = c
	case "ValidatingWebhookConfiguration":
		c := &admissionv1.ValidatingWebhookConfiguration{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, c); err != nil {
			return nil, fmt.Errorf("read %s: %w", object.GetName(), err)
		}
		for i := range c.Webhooks {
			configs = append(configs, &c.Webhooks[i].ClientConfig)
		}
		typed = c
	default:
		return nil, fmt.Errorf("%s %s is no webhook configuration", object.GetKind(), object.GetName())
	}
	for _, c := range configs {
		if err := f(c); err != nil {
			return nil, err
		}
	}
	back, err := runtime.DefaultUnstructuredConverter.ToUnstructured(typed)
	if err != nil {
		return nil, fmt.Errorf("write %s: %w", object.GetName(), err)
	}
	result := &unstructured.Unstructured{Object: back}
	// An empty creationTimestamp would be applied as a change to null.
	unstructured.RemoveNestedField(result.Object, "metadata", "creationTimestamp")
	return result, nil
}
