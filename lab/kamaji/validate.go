package kamaji

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/blang/semver/v4"
	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"aether.internal/aether/lab/kamaji/v1alpha1"
)

// The texts below are the real one's, word for word: callers see nothing else.
var (
	errNoDataStore = errors.New("nope DataStore does not exist")
	errNoGateway   = errors.New("the Gateway API is not available in this cluster, cannot use gatewayRoute configuration")
)

// validator refuses what the CRD lets pass.
type validator struct {
	decoder admission.Decoder
	api     client.Client
}

// Handle runs the checks; the first that fails is the answer.
func (v *validator) Handle(ctx context.Context, req admission.Request) admission.Response {
	tcp, old := &v1alpha1.TenantControlPlane{}, (*v1alpha1.TenantControlPlane)(nil)
	if err := v.decoder.Decode(req, tcp); err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	if !tcp.DeletionTimestamp.IsZero() {
		return admission.Allowed("")
	}
	if req.Operation == admissionv1.Update {
		old = &v1alpha1.TenantControlPlane{}
		if err := v.decoder.DecodeRaw(req.OldObject, old); err != nil {
			return admission.Errored(http.StatusBadRequest, err)
		}
	}
	for _, check := range []func() error{
		func() error { return checkName(tcp.Name) },
		func() error { return checkVersion(tcp, old) },
		func() error { return checkSANs(tcp.Spec.NetworkProfile.CertSANs) },
		func() error { return checkDNS(tcp.Spec.NetworkProfile) },
		func() error { return v.checkDataStore(ctx, tcp, old) },
		func() error { return checkGateway(tcp) },
	} {
		if err := check(); err != nil {
			return admission.Denied(err.Error())
		}
	}
	if replicas := tcp.Spec.ControlPlane.Deployment.Replicas; replicas != nil && *replicas < 0 {
		return deniedReplicas(tcp.Name, *replicas)
	}
	return admission.Allowed("")
}

func checkName(name string) error {
	if messages := validation.IsDNS1035Label(name); len(messages) > 0 {
		return fmt.Errorf("the provided name is invalid, %s", strings.Join(messages, ","))
	}
	return nil
}

func parseVersion(version string) (semver.Version, error) {
	return semver.Parse(strings.TrimPrefix(version, "v"))
}

func checkVersion(tcp, old *v1alpha1.TenantControlPlane) error {
	wanted, err := parseVersion(tcp.Spec.Kubernetes.Version)
	if err != nil {
		return fmt.Errorf("unable to parse the desired Kubernetes version: %w", err)
	}
	supported := semver.Version{Major: 1, Minor: supportedMinor}
	wanted = semver.Version{Major: wanted.Major, Minor: wanted.Minor}
	if old == nil {
		if wanted.GT(supported) {
			return fmt.Errorf("unable to create a TenantControlPlane with a Kubernetes version greater than the supported one, actually v%d.%d", supported.Major, supported.Minor)
		}
		return nil
	}
	current, err := parseVersion(old.Spec.Kubernetes.Version)
	if err != nil {
		return fmt.Errorf("unable to parse the current Kubernetes version: %w", err)
	}
	current = semver.Version{Major: current.Major, Minor: current.Minor}
	switch {
	case wanted.GT(supported):
		return fmt.Errorf("unable to upgrade to a version greater than the supported one (v%d.%d)", supported.Major, supported.Minor)
	case wanted.LT(current):
		return fmt.Errorf("unable to downgrade a TenantControlPlane from %s to %s", current, wanted)
	case wanted.Minor > current.Minor+1:
		return errors.New("unable to upgrade to a minor version in a non-sequential mode")
	}
	return nil
}

func checkSANs(names []string) error {
	path := field.NewPath("spec", "networkProfile", "certSANs")
	var all field.ErrorList
	for _, name := range names {
		plain := validation.IsDNS1123Subdomain(name)
		wildcard := validation.IsWildcardDNS1123Subdomain(name)
		if len(plain) == 0 || len(wildcard) == 0 || net.ParseIP(name) != nil {
			continue
		}
		all = append(all, field.Invalid(path, name, fmt.Sprintf(
			"altname is not a valid IP address, DNS label or a DNS label with subdomain wildcards: %s; %s",
			strings.Join(plain, "; "), strings.Join(wildcard, "; "))))
	}
	if len(all) == 0 {
		return nil
	}
	return all.ToAggregate()
}

func checkDNS(network v1alpha1.NetworkProfileSpec) error {
	cidrs := network.ServiceCIDRs
	if len(cidrs) == 0 {
		cidrs = []string{network.ServiceCIDR}
	}
	for _, text := range network.DNSServiceIPs {
		address, err := netip.ParseAddr(text)
		if err != nil {
			return fmt.Errorf("DNS service IP %q is not a valid IP address", text)
		}
		inside := slices.ContainsFunc(cidrs, func(cidr string) bool {
			prefix, err := netip.ParsePrefix(cidr)
			return err == nil && prefix.Contains(address)
		})
		if !inside {
			return fmt.Errorf("DNS service IP %q is not contained in any configured service CIDR", text)
		}
	}
	return nil
}

// checkDataStore looks at creation and when the name changes.
func (v *validator) checkDataStore(ctx context.Context, tcp, old *v1alpha1.TenantControlPlane) error {
	name := tcp.Spec.DataStore
	if name == "" || (old != nil && old.Spec.DataStore == name) {
		return nil
	}
	err := v.api.Get(ctx, types.NamespacedName{Name: name}, &v1alpha1.DataStore{})
	if apierrors.IsNotFound(err) {
		return errNoDataStore
	}
	return err
}

func checkGateway(tcp *v1alpha1.TenantControlPlane) error {
	if tcp.Spec.ControlPlane.Gateway != nil {
		return errNoGateway
	}
	return nil
}

func deniedReplicas(name string, replicas int32) admission.Response {
	gvk := v1alpha1.GroupVersion().WithKind("TenantControlPlane")
	path := field.NewPath(".spec", "controlPlane", "deployment", "replicas")
	invalid := apierrors.NewInvalid(gvk.GroupKind(), name, field.ErrorList{field.Invalid(path, replicas, "should be a non-negative integer")})
	response := admission.Denied("")
	response.Result = &invalid.ErrStatus
	return response
}
