package kamaji

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// FieldManager is the name under which Aether applies.
const FieldManager = "aether"

// Options of a Client; the zero value is ready.
type Options struct {
	// Dial opens connections to tenants' API servers; nil is the usual dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Now tells the time; nil is time.Now.
	Now func() time.Time
}

// Client works with the control planes of one management cluster.
type Client struct {
	api  client.Client
	dial func(ctx context.Context, network, address string) (net.Conn, error)
	now  func() time.Time
}

// New returns a client. Its reads should not come from a cache: Check is asked
// for what is there now.
func New(api client.Client, o Options) (*Client, error) {
	if api == nil {
		return nil, errors.New("kamaji client: the management cluster's client is missing")
	}
	c := &Client{api: api, dial: o.Dial, now: o.Now}
	if c.dial == nil {
		c.dial = (&net.Dialer{Timeout: callTimeout, KeepAlive: keepAlive}).DialContext
	}
	if c.now == nil {
		c.now = time.Now
	}
	return c, nil
}

// Apply writes the control plane by server-side apply. It may be repeated.
func (c *Client) Apply(ctx context.Context, s Spec) error {
	wanted, err := Build(s)
	if err != nil {
		return err
	}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(wanted)
	if err != nil {
		return fmt.Errorf("encode control plane %s: %w", s.Ref, err)
	}
	apply := client.ApplyConfigurationFromUnstructured(&unstructured.Unstructured{Object: object})
	return sorted("apply", s.Ref, c.api.Apply(ctx, apply, client.FieldOwner(FieldManager), client.ForceOwnership))
}

// Status is what Kamaji tells of a control plane. It is not a judgement: see
// Check.
type Status struct {
	Ref Ref `json:"ref"`
	// UID changes when a control plane is made anew under the same name; its
	// authority is another one then.
	UID string `json:"uid"`
	// Word is Kamaji's summary; empty while it has written nothing.
	Word string `json:"word"`
	// Wanted and Installed are versions of Kubernetes.
	Wanted    string `json:"wanted"`
	Installed string `json:"installed"`
	// Observed tells that Kamaji has seen the latest spec; not that it runs.
	Observed bool `json:"observed"`
	// Advertised is the address that the tenant's own clients are told.
	Advertised string `json:"advertised"`
	// Address is that of the load balancer on the management side.
	Address   string    `json:"address"`
	DataStore string    `json:"dataStore"`
	Created   time.Time `json:"created"`
	// Deleting since when, and what holds the object; zero otherwise.
	Deleting   time.Time `json:"deleting,omitzero"`
	Finalizers []string  `json:"finalizers,omitempty"`
}

// Status reads what Kamaji tells. A missing one is ErrNotFound.
func (c *Client) Status(ctx context.Context, ref Ref) (Status, error) {
	tcp, err := c.read(ctx, ref)
	if err != nil {
		return Status{}, err
	}
	service, err := c.service(ctx, ref)
	if err != nil {
		return Status{}, err
	}
	return status(ref, tcp, service), nil
}

func status(ref Ref, tcp *observed, service *corev1.Service) Status {
	s := Status{
		Ref: ref, UID: string(tcp.Metadata.UID),
		Word:   tcp.Status.Kubernetes.Version.Status,
		Wanted: tcp.Spec.Kubernetes.Version, Installed: tcp.Status.Kubernetes.Version.Version,
		Observed:   tcp.Status.ObservedGeneration == tcp.Metadata.Generation,
		Advertised: tcp.Spec.NetworkProfile.AdvertiseAddress,
		DataStore:  tcp.Spec.DataStore,
		Created:    tcp.Metadata.CreationTimestamp.Time,
		Address:    loadBalancer(service),
		Finalizers: tcp.Metadata.Finalizers,
	}
	if tcp.Metadata.DeletionTimestamp != nil {
		s.Deleting = tcp.Metadata.DeletionTimestamp.Time
	}
	return s
}

func loadBalancer(service *corev1.Service) string {
	if service == nil {
		return ""
	}
	for _, ingress := range service.Status.LoadBalancer.Ingress {
		if ingress.IP != "" {
			return ingress.IP
		}
	}
	return ""
}

func (c *Client) read(ctx context.Context, ref Ref) (*observed, error) {
	tcp := &observed{}
	if err := c.readInto(ctx, kindTCP, types.NamespacedName(ref), tcp); err != nil {
		return nil, sorted("read", ref, err)
	}
	return tcp, nil
}

// readInto reads one of Kamaji's objects into a type of ours.
func (c *Client) readInto(ctx context.Context, kind string, key types.NamespacedName, into any) error {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(groupVersion().WithKind(kind))
	if err := c.api.Get(ctx, key, object); err != nil {
		return err
	}
	return runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, into)
}

// service returns the Service; nil if there is none.
func (c *Client) service(ctx context.Context, ref Ref) (*corev1.Service, error) {
	service := &corev1.Service{}
	found, err := c.find(ctx, ref, types.NamespacedName(ref), service)
	if err != nil || !found {
		return nil, err
	}
	return service, nil
}

// deployment returns the Deployment; nil if there is none.
func (c *Client) deployment(ctx context.Context, ref Ref) (*appsv1.Deployment, error) {
	deployment := &appsv1.Deployment{}
	found, err := c.find(ctx, ref, types.NamespacedName(ref), deployment)
	if err != nil || !found {
		return nil, err
	}
	return deployment, nil
}

// secret returns a Secret of the control plane; nil if there is none.
func (c *Client) secret(ctx context.Context, ref Ref, suffix string) (*corev1.Secret, error) {
	secret := &corev1.Secret{}
	found, err := c.find(ctx, ref, types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name + suffix}, secret)
	if err != nil || !found {
		return nil, err
	}
	return secret, nil
}

// find reads an object that may be missing.
func (c *Client) find(ctx context.Context, ref Ref, key types.NamespacedName, into client.Object) (bool, error) {
	err := c.api.Get(ctx, key, into)
	if client.IgnoreNotFound(err) != nil {
		return false, sorted(fmt.Sprintf("read %s of", key.Name), ref, err)
	}
	return err == nil, nil
}

// owner matches what Kamaji made for a control plane.
func owner(ref Ref) []client.ListOption {
	return []client.ListOption{client.InNamespace(ref.Namespace), client.MatchingLabels{labelTenant: ref.Name}}
}
