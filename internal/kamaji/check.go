package kamaji

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// callTimeout bounds each single question to a tenant.
	callTimeout = 5 * time.Second
	keepAlive   = 30 * time.Second
)

// Need is the name of something a usable control plane needs.
type Need string

// The needs, in the order in which they can be met.
const (
	NeedDataStore         Need = "datastore"
	NeedAddress           Need = "address"
	NeedReconciled        Need = "reconciled"
	NeedPods              Need = "pods"
	NeedNodeRestriction   Need = "node-restriction"
	NeedCertificate       Need = "certificate"
	NeedAPIServer         Need = "api-server"
	NeedControllerManager Need = "controller-manager"
	NeedScheduler         Need = "scheduler"
	NeedAdminRights       Need = "admin-rights"
	NeedPublished         Need = "published-kubeconfig"
	NeedClusterInfo       Need = "cluster-info"
	NeedJoinRights        Need = "join-rights"
	NeedDNS               Need = "dns"
	NeedTunnel            Need = "tunnel"
)

// Want is what a control plane is judged by.
type Want struct {
	Version      string     `json:"version"`
	ProxyAddress netip.Addr `json:"proxyAddress"`
}

// WantOf returns it for a spec.
func WantOf(s Spec) Want { return Want{Version: s.Version, ProxyAddress: s.ProxyAddress} }

func (w Want) server() string { return serverURL(w.ProxyAddress.String()) }

// Finding is what was seen about a need.
type Finding struct {
	Need Need `json:"need"`
	Met  bool `json:"met"`
	// Reason says what is missing; empty when met.
	Reason string `json:"reason,omitempty"`
}

// Report is a judgement: all needs in order.
type Report struct {
	Findings []Finding `json:"findings"`
}

// Ready tells whether all needs are met.
func (r Report) Ready() bool { return len(r.Findings) > 0 && len(r.Unmet()) == 0 }

// Unmet lists what is missing, in the order in which it can be met.
func (r Report) Unmet() []Finding {
	var unmet []Finding
	for _, f := range r.Findings {
		if !f.Met {
			unmet = append(unmet, f)
		}
	}
	return unmet
}

// String says in one line what is waited for.
func (r Report) String() string {
	unmet := r.Unmet()
	switch {
	case len(r.Findings) == 0:
		return "not looked at"
	case len(unmet) == 0:
		return "usable"
	}
	text := fmt.Sprintf("waits for %s: %s", unmet[0].Need, unmet[0].Reason)
	if len(unmet) > 1 {
		rest := make([]string, 0, len(unmet)-1)
		for _, f := range unmet[1:] {
			rest = append(rest, string(f.Need))
		}
		text += " (then " + strings.Join(rest, ", ") + ")"
	}
	return text
}

// inspection is one look at a control plane.
type inspection struct {
	*Client
	ref  Ref
	want Want

	tcp        *observed
	service    *corev1.Service
	deployment *appsv1.Deployment
	address    string
	ca         []byte
	super      *tenant
	admin      *tenant

	report Report
	asked  bool // the API server answered
}

// Check looks at everything that is needed and tells what is missing and why.
// An error means that the management cluster could not be asked, which says
// nothing about the control plane; ErrNotFound that there is none.
func (c *Client) Check(ctx context.Context, ref Ref, want Want) (Report, error) {
	i := &inspection{Client: c, ref: ref, want: want}
	defer i.close()
	if err := i.gather(ctx); err != nil {
		return Report{}, err
	}
	if err := i.checkManagement(ctx); err != nil {
		return Report{}, err
	}
	if err := i.openTenant(ctx); err != nil {
		return Report{}, err
	}
	i.checkTenant(ctx)
	return i.report, nil
}

// gather reads the management side once.
func (i *inspection) gather(ctx context.Context) error {
	var err error
	if i.tcp, err = i.read(ctx, i.ref); err != nil {
		return err
	}
	if i.service, err = i.Client.service(ctx, i.ref); err != nil {
		return err
	}
	if i.deployment, err = i.Client.deployment(ctx, i.ref); err != nil {
		return err
	}
	i.address = loadBalancer(i.service)
	secret, err := i.secret(ctx, i.ref, suffixCA)
	if err != nil {
		return err
	}
	if secret != nil {
		i.ca = secret.Data[keyCA]
	}
	return nil
}

// say notes a finding; an empty reason means that the need is met.
func (i *inspection) say(need Need, reason string) {
	i.report.Findings = append(i.report.Findings, Finding{Need: need, Met: reason == "", Reason: reason})
}

func (i *inspection) checkManagement(ctx context.Context) error {
	reason, err := i.dataStore(ctx)
	if err != nil {
		return err
	}
	i.say(NeedDataStore, reason)
	i.say(NeedAddress, i.addressReason())
	i.say(NeedReconciled, i.reconciledReason())
	i.say(NeedPods, podsReason(i.deployment))
	i.say(NeedNodeRestriction, nodeRestrictionReason(i.deployment))
	return nil
}

// dataStore finds the cause of Kamaji's silence.
func (i *inspection) dataStore(ctx context.Context) (string, error) {
	name := i.tcp.Spec.DataStore
	store := &observedStore{}
	err := i.readInto(ctx, kindDataStore, types.NamespacedName{Name: name}, store)
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("DataStore %q does not exist", name), nil
	case err != nil:
		return "", sorted("read datastore of", i.ref, err)
	case store.Status.Ready:
		return "", nil
	}
	for _, condition := range store.Status.Conditions {
		if condition.Status != "True" && condition.Message != "" {
			return fmt.Sprintf("DataStore %s is not ready: %s", name, condition.Message), nil
		}
	}
	return fmt.Sprintf("DataStore %s is not ready", name), nil
}

func (i *inspection) addressReason() string {
	switch {
	case i.service == nil:
		return fmt.Sprintf("Kamaji has not made Service %s in %s; it tells no reason but in its own log", i.ref, i.age())
	case i.address == "":
		return fmt.Sprintf("Service %s has no load balancer address after %s; Kamaji waits for it in silence: does the site's load balancer run, and has its pool a free address?", i.ref, i.age())
	}
	return ""
}

func (i *inspection) age() time.Duration {
	return i.now().Sub(i.tcp.Metadata.CreationTimestamp.Time).Round(time.Second)
}

func (i *inspection) reconciledReason() string {
	version, meta := i.tcp.Status.Kubernetes.Version, i.tcp.Metadata
	switch {
	case meta.DeletionTimestamp != nil:
		return "is being deleted"
	case i.tcp.Spec.Kubernetes.Version != i.want.Version:
		return fmt.Sprintf("spec asks for %s, not %s", i.tcp.Spec.Kubernetes.Version, i.want.Version)
	case version.Status == "":
		return fmt.Sprintf("Kamaji has written no status in %s", i.age())
	case i.tcp.Status.ObservedGeneration != meta.Generation:
		return fmt.Sprintf("Kamaji has seen generation %d of %d (status %s)", i.tcp.Status.ObservedGeneration, meta.Generation, version.Status)
	case version.Status != "Ready":
		return "Kamaji's status is " + version.Status
	case version.Version != i.want.Version:
		return fmt.Sprintf("version %s runs, not %s", version.Version, i.want.Version)
	}
	return ""
}

func podsReason(deployment *appsv1.Deployment) string {
	if deployment == nil {
		return "no Deployment yet"
	}
	wanted := int32(1)
	if deployment.Spec.Replicas != nil {
		wanted = *deployment.Spec.Replicas
	}
	s := deployment.Status
	switch {
	case s.ObservedGeneration < deployment.Generation:
		return fmt.Sprintf("Deployment %s: its change is not seen yet", deployment.Name)
	case s.AvailableReplicas < wanted, s.UpdatedReplicas < wanted, s.Replicas > wanted:
		return fmt.Sprintf("Deployment %s: %d of %d replicas available, %d updated, %d in all", deployment.Name, s.AvailableReplicas, wanted, s.UpdatedReplicas, s.Replicas)
	}
	return ""
}

// nodeRestrictionReason looks at what the API server is started with.
func nodeRestrictionReason(deployment *appsv1.Deployment) string {
	const flag = "--enable-admission-plugins="
	if deployment == nil {
		return "no Deployment yet"
	}
	for _, container := range deployment.Spec.Template.Spec.Containers {
		for _, argument := range container.Args {
			if list, ok := strings.CutPrefix(argument, flag); ok && strings.Contains(","+list+",", ","+nodeRestriction+",") {
				return ""
			}
		}
	}
	return "the API server is started without " + nodeRestriction + ": one node's certificate could change other Nodes"
}
