package domain

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"

	"aether.internal/aether/api/v1alpha1"
)

// TenantDocument is an AetherCluster as a person writes it: the input of
// CreateTenant and ApplyTenant. ParseTenant refuses unknown fields, but for what
// an API server adds: the output of `aether tenant get -o yaml` is a document.
type TenantDocument struct {
	APIVersion string                     `json:"apiVersion,omitempty"`
	Kind       string                     `json:"kind,omitempty"`
	Metadata   DocumentMetadata           `json:"metadata"`
	Spec       v1alpha1.AetherClusterSpec `json:"spec"`
}

// DocumentMetadata is the part of an object's metadata that a tenant document
// may carry.
type DocumentMetadata struct {
	Name        string            `json:"name"`
	Namespace   string            `json:"namespace,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// AetherClusterKind is the kind of a tenant document.
const AetherClusterKind = "AetherCluster"

// Document returns the tenant as a document.
func (t Tenant) Document() TenantDocument {
	return TenantDocument{
		APIVersion: v1alpha1.GroupVersion.String(),
		Kind:       AetherClusterKind,
		Metadata:   DocumentMetadata{Name: t.Name, Namespace: t.Namespace()},
		Spec:       t.Spec,
	}
}

// Tenant checks the document's head and returns the tenant. Its spec is
// checked against a site, by Tenant.Validate.
func (d TenantDocument) Tenant() (Tenant, error) {
	var p Problems
	if d.APIVersion != "" && d.APIVersion != v1alpha1.GroupVersion.String() {
		p.Add("apiVersion", Shown(d.APIVersion), v1alpha1.GroupVersion.String(), "")
	}
	if d.Kind != "" && d.Kind != AetherClusterKind {
		p.Add("kind", Shown(d.Kind), AetherClusterKind, "")
	}
	if d.Metadata.Name == "" {
		p.Add("metadata.name", "nothing", "the tenant's name", "")
	}
	if ns := d.Metadata.Namespace; ns != "" && ns != TenantNamespace(d.Metadata.Name) {
		p.Add("metadata.namespace", Shown(ns), TenantNamespace(d.Metadata.Name), "leave it out: each tenant has a namespace of its own")
	}
	return Tenant{Name: d.Metadata.Name, Spec: d.Spec}, p.Err()
}

// ParseTenant decodes one AetherCluster from JSON. It refuses unknown fields and
// values of the wrong kind with Problems, one for each.
func ParseTenant(data []byte) (Tenant, error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	var content map[string]any
	if err := decoder.Decode(&content); err != nil {
		return Tenant{}, fmt.Errorf("tenant document: found something that is no mapping; allowed: one %s; see examples/tenant.yaml: %w", AetherClusterKind, err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return Tenant{}, fmt.Errorf("tenant document: found more behind its end; allowed: one %s", AetherClusterKind)
	}
	withoutServerFields(content)
	var check strict
	check.walk("", content, reflect.TypeFor[TenantDocument]())
	if err := check.problems.Err(); err != nil {
		return Tenant{}, err
	}
	rest, err := json.Marshal(content)
	if err != nil {
		return Tenant{}, fmt.Errorf("tenant document: %w", err)
	}
	var d TenantDocument
	if err := json.Unmarshal(rest, &d); err != nil {
		return Tenant{}, fmt.Errorf("tenant document: %w", err)
	}
	return d.Tenant()
}

// withoutServerFields removes what an API server adds to an object.
func withoutServerFields(content map[string]any) {
	delete(content, "status")
	metadata, ok := content["metadata"].(map[string]any)
	if !ok {
		return
	}
	for _, name := range []string{
		"uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds",
		"managedFields", "ownerReferences", "finalizers", "selfLink",
	} {
		delete(metadata, name)
	}
}
