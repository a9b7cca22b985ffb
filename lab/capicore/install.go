package capicore

import (
	"context"
	"errors"
	"fmt"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// fieldManager owns what is installed here.
const fieldManager = "lab-capicore"

// installer writes manifests to the management cluster.
type installer struct{ client dynamic.Interface }

func newInstaller(config *rest.Config) (*installer, error) {
	// Some forty objects at once; the default limit would take seconds.
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = 100, 200
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client of the management cluster: %w", err)
	}
	return &installer{client: client}, nil
}

// resourceOf names where objects of a kind are written. All are cluster wide.
func resourceOf(kind schema.GroupVersionKind) (schema.GroupVersionResource, error) {
	known := map[string]string{
		"CustomResourceDefinition":       "customresourcedefinitions",
		"ClusterRole":                    "clusterroles",
		"ClusterRoleBinding":             "clusterrolebindings",
		"MutatingWebhookConfiguration":   "mutatingwebhookconfigurations",
		"ValidatingWebhookConfiguration": "validatingwebhookconfigurations",
	}
	resource, ok := known[kind.Kind]
	if !ok {
		return schema.GroupVersionResource{}, fmt.Errorf("manifest holds a %s, which is not expected", kind)
	}
	return kind.GroupVersion().WithResource(resource), nil
}

// apply makes the objects be as given; what is so already stays untouched.
func (i *installer) apply(ctx context.Context, objects []*unstructured.Unstructured) error {
	for _, object := range objects {
		resource, err := resourceOf(object.GroupVersionKind())
		if err != nil {
			return err
		}
		_, err = i.client.Resource(resource).Apply(ctx, object.GetName(), object, metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
		if err != nil {
			return fmt.Errorf("apply %s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
	return nil
}

// waitEstablished waits until the API server serves each of the CRDs.
func (i *installer) waitEstablished(ctx context.Context, objects []*unstructured.Unstructured) error {
	resource := apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions")
	for _, object := range objects {
		for {
			got, err := i.client.Resource(resource).Get(ctx, object.GetName(), metav1.GetOptions{})
			if err != nil {
				return fmt.Errorf("look at CustomResourceDefinition %s: %w", object.GetName(), err)
			}
			crd := &apiextensionsv1.CustomResourceDefinition{}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(got.Object, crd); err != nil {
				return fmt.Errorf("look at CustomResourceDefinition %s: %w", object.GetName(), err)
			}
			established, why := isEstablished(crd)
			if established {
				break
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("CustomResourceDefinition %s is not served: %w: %w", object.GetName(), ctx.Err(), why)
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
	return nil
}

// isEstablished tells whether a CRD is served, and else what is known of why.
func isEstablished(crd *apiextensionsv1.CustomResourceDefinition) (bool, error) {
	why := errors.New("it has no conditions yet")
	for _, c := range crd.Status.Conditions {
		if c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue {
			return true, nil
		}
		if c.Status == apiextensionsv1.ConditionFalse {
			why = fmt.Errorf("condition %s is false: %s", c.Type, c.Message)
		}
	}
	return false, why
}
