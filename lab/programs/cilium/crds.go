package cilium

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

const crdGroup = "cilium.io"

// kinds lists the CRDs that a configuration without extras needs, by plural.
func kinds() map[string]apiextensionsv1.CustomResourceDefinitionNames {
	found := map[string]apiextensionsv1.CustomResourceDefinitionNames{}
	for _, kind := range []string{
		"CiliumIdentity", "CiliumEndpoint", "CiliumNode", "CiliumNetworkPolicy", "CiliumClusterwideNetworkPolicy",
		"CiliumCIDRGroup", "CiliumPodIPPool", "CiliumLoadBalancerIPPool", "CiliumL2AnnouncementPolicy", "CiliumNodeConfig",
	} {
		singular := strings.ToLower(kind)
		plural := singular + "s"
		if stem, ok := strings.CutSuffix(singular, "y"); ok {
			plural = stem + "ies"
		}
		found[plural] = apiextensionsv1.CustomResourceDefinitionNames{
			Kind: kind, ListKind: kind + "List", Singular: singular, Plural: plural,
		}
	}
	return found
}

func namespaced(plural string) bool {
	return plural == "ciliumendpoints" || plural == "ciliumnetworkpolicies" || plural == "ciliumnodeconfigs"
}

// definition is a CRD without a schema of its own: the lab has no use for what
// is in these objects, except for CiliumNodes, which only our programs write.
func definition(names apiextensionsv1.CustomResourceDefinitionNames) *apiextensionsv1.CustomResourceDefinition {
	scope := apiextensionsv1.ClusterScoped
	if namespaced(names.Plural) {
		scope = apiextensionsv1.NamespaceScoped
	}
	keep := true
	version := apiextensionsv1.CustomResourceDefinitionVersion{
		Name: "v2", Served: true, Storage: true,
		Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
			Type: "object", XPreserveUnknownFields: &keep,
		}},
		Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
	}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: names.Plural + "." + crdGroup, Labels: map[string]string{"io.cilium.k8s.crd.schema.version": "1.32.0"}},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: crdGroup, Names: names, Scope: scope, Versions: []apiextensionsv1.CustomResourceDefinitionVersion{version},
		},
	}
}

// createCRDs makes what is missing.
func createCRDs(ctx context.Context, api *clients) error {
	client := api.crds.ApiextensionsV1().CustomResourceDefinitions()
	all := kinds()
	for _, plural := range slices.Sorted(maps.Keys(all)) {
		_, err := client.Create(ctx, definition(all[plural]), metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("unable to create CRD %s: %w", plural, err)
		}
	}
	return nil
}

// How the agent waits for the CRDs.
const crdLook = 500 * time.Millisecond

// waitForCRDs returns when all CRDs are served.
func waitForCRDs(ctx context.Context, api *clients, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		missing, err := missingCRDs(ctx, api)
		if err == nil && len(missing) == 0 {
			return nil
		}
		if pause(ctx, crdLook) != nil {
			return fmt.Errorf("timed out after %s waiting for CRDs %v: %w", timeout, missing, orElse(err, context.DeadlineExceeded))
		}
	}
}

func orElse(err, fallback error) error {
	if err != nil {
		return err
	}
	return fallback
}

func missingCRDs(ctx context.Context, api *clients) ([]string, error) {
	list, err := api.crds.ApiextensionsV1().CustomResourceDefinitions().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list CRDs: %w", err)
	}
	missing := kinds()
	for i := range list.Items {
		for _, condition := range list.Items[i].Status.Conditions {
			if condition.Type == apiextensionsv1.Established && condition.Status == apiextensionsv1.ConditionTrue && list.Items[i].Spec.Group == crdGroup {
				delete(missing, list.Items[i].Spec.Names.Plural)
			}
		}
	}
	return slices.Sorted(maps.Keys(missing)), nil
}

// overlay lays the defaults of one CiliumNodeConfig over the configuration if
// it selects the node.
func overlay(data map[string]string, object map[string]any, nodeLabels map[string]string) error {
	raw, err := json.Marshal(object["spec"])
	if err != nil {
		return fmt.Errorf("spec: %w", err)
	}
	var spec struct {
		NodeSelector *metav1.LabelSelector `json:"nodeSelector"`
		Defaults     map[string]string     `json:"defaults"`
	}
	if err := json.Unmarshal(raw, &spec); err != nil {
		return fmt.Errorf("spec: %w", err)
	}
	selector, err := metav1.LabelSelectorAsSelector(spec.NodeSelector)
	if err != nil {
		return fmt.Errorf("nodeSelector: %w", err)
	}
	if selector.Matches(labels.Set(nodeLabels)) {
		maps.Copy(data, spec.Defaults)
	}
	return nil
}
