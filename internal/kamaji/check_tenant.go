package kamaji

import (
	"context"
	"fmt"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"aether.internal/aether/internal/domain"
)

const (
	nsSystem = "kube-system"
	nsPublic = "kube-public"

	// leaseSlack is allowed on top of a lease's own duration, for clocks that
	// differ and renewals under way.
	leaseSlack    = 5 * time.Second
	leaseDuration = 15 * time.Second
)

// checkTenant asks the tenant itself. Without an answer of its API server the
// rest cannot be looked at.
func (i *inspection) checkTenant(ctx context.Context) {
	i.say(NeedCertificate, i.certificateReason(ctx))
	i.say(NeedAPIServer, i.apiServerReason(ctx))
	for _, check := range []struct {
		need Need
		look func(context.Context) string
	}{
		{NeedControllerManager, func(ctx context.Context) string { return i.leaseReason(ctx, "kube-controller-manager") }},
		{NeedScheduler, func(ctx context.Context) string { return i.leaseReason(ctx, "kube-scheduler") }},
		{NeedAdminRights, i.adminReason},
		{NeedPublished, i.publishedReason},
		{NeedClusterInfo, i.clusterInfoReason},
		{NeedJoinRights, i.joinReason},
		{NeedDNS, i.dnsReason},
		{NeedTunnel, i.tunnelReason},
	} {
		if !i.asked {
			i.say(check.need, "not looked at: the API server does not answer")
			continue
		}
		i.say(check.need, check.look(ctx))
	}
}

func (i *inspection) certificateReason(ctx context.Context) string {
	if i.address == "" || len(i.ca) == 0 {
		return "not looked at: there is no load balancer address or no authority yet"
	}
	if err := i.handshake(ctx, i.address, domain.APIServerPort, i.want.ProxyAddress.String(), i.ca); err != nil {
		return fmt.Sprintf("what is served at %s is not good for the proxy's address %s: %v", i.address, i.want.ProxyAddress, err)
	}
	return ""
}

func (i *inspection) apiServerReason(ctx context.Context) string {
	if i.super == nil {
		return "not looked at: there is no load balancer address or no kubeconfig yet"
	}
	answer, err := i.super.api.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
	if err != nil {
		return fmt.Sprintf("https://%s/readyz: %v", i.address, err)
	}
	if string(answer) != "ok" {
		return fmt.Sprintf("https://%s/readyz answers something else than ok", i.address)
	}
	i.asked = true
	return ""
}

// leaseReason looks at the lease that a component renews while it works: its
// own health endpoint answers even when it never reached the API server.
func (i *inspection) leaseReason(ctx context.Context, component string) string {
	lease, err := i.super.api.CoordinationV1().Leases(nsSystem).Get(ctx, component, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return component + " has not taken its lease: it does not reach the API server"
	case err != nil:
		return fmt.Sprintf("read lease %s/%s: %v", nsSystem, component, err)
	}
	return staleReason(lease, component, i.now())
}

func staleReason(lease *coordinationv1.Lease, component string, now time.Time) string {
	if lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" || lease.Spec.RenewTime == nil {
		return component + " does not hold its lease"
	}
	valid := leaseDuration
	if lease.Spec.LeaseDurationSeconds != nil {
		valid = time.Duration(*lease.Spec.LeaseDurationSeconds) * time.Second
	}
	if age := now.Sub(lease.Spec.RenewTime.Time); age > valid+leaseSlack {
		return fmt.Sprintf("%s last renewed its lease %s ago", component, age.Round(time.Second))
	}
	return ""
}

// adminReason uses the published credentials, whose rights Kamaji binds only
// after it has said Ready.
func (i *inspection) adminReason(ctx context.Context) string {
	if i.admin == nil {
		return "Secret " + i.ref.Name + suffixAdmin + " has no " + keyAdmin
	}
	_, err := i.admin.api.CoreV1().Namespaces().Get(ctx, nsSystem, metav1.GetOptions{})
	switch {
	case apierrors.IsForbidden(err):
		return "the administrator has no rights yet: ClusterRoleBinding kubeadm:cluster-admins is missing"
	case err != nil:
		return fmt.Sprintf("the administrator's credentials do not work: %v", err)
	}
	return ""
}

func (i *inspection) publishedReason(ctx context.Context) string {
	published, err := i.kubeconfig(ctx, i.ref, keyAdmin)
	if err != nil {
		return err.Error()
	}
	cluster, err := clusterOf(published)
	switch {
	case err != nil:
		return err.Error()
	case cluster.Server != i.want.server():
		return fmt.Sprintf("%s names server %s, not %s; delete Secret %s%s, which Kamaji makes anew", keyAdmin, cluster.Server, i.want.server(), i.ref.Name, suffixAdmin)
	case !samePEM(cluster.CertificateAuthorityData, i.ca):
		return keyAdmin + " trusts another authority than Secret " + i.ref.Name + suffixCA
	}
	return ""
}

func (i *inspection) clusterInfoReason(ctx context.Context) string {
	info, err := i.super.api.CoreV1().ConfigMaps(nsPublic).Get(ctx, "cluster-info", metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return "ConfigMap kube-public/cluster-info is missing"
	case err != nil:
		return fmt.Sprintf("read kube-public/cluster-info: %v", err)
	}
	config, err := clientcmd.Load([]byte(info.Data["kubeconfig"]))
	if err != nil || config.Clusters[""] == nil {
		return "kube-public/cluster-info has no readable kubeconfig"
	}
	const cure = "; delete it in the tenant, Kamaji makes it anew"
	switch cluster := config.Clusters[""]; {
	case cluster.Server != i.want.server():
		return fmt.Sprintf("kube-public/cluster-info names server %s, not %s%s", cluster.Server, i.want.server(), cure)
	case !samePEM(cluster.CertificateAuthorityData, i.ca):
		return "kube-public/cluster-info has another authority than the cluster" + cure
	}
	return ""
}

// joinReason looks for what a worker's TLS bootstrap and the API server's own
// calls to kubelets need.
func (i *inspection) joinReason(ctx context.Context) string {
	var missing []string
	for _, name := range []string{
		"kubeadm:kubelet-bootstrap", "kubeadm:node-autoapprove-bootstrap",
		"kubeadm:node-autoapprove-certificate-rotation", "kubeadm:apiserver-kubelet-client",
	} {
		_, err := i.super.api.RbacV1().ClusterRoleBindings().Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			missing = append(missing, name)
		case err != nil:
			return fmt.Sprintf("read ClusterRoleBinding %s: %v", name, err)
		}
	}
	if len(missing) > 0 {
		return "ClusterRoleBindings are missing: " + strings.Join(missing, ", ")
	}
	return ""
}

func (i *inspection) dnsReason(ctx context.Context) string {
	_, err := i.super.api.CoreV1().Services(nsSystem).Get(ctx, "kube-dns", metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return "Service kube-system/kube-dns is missing"
	case err != nil:
		return fmt.Sprintf("read Service kube-system/kube-dns: %v", err)
	}
	return ""
}

// tunnelReason looks at both ends: the port the agents will dial, and the
// DaemonSet that will run them.
func (i *inspection) tunnelReason(ctx context.Context) string {
	if !i.tcp.Status.Addons.Konnectivity.Enabled {
		return "Kamaji has not switched konnectivity on yet"
	}
	if err := i.handshake(ctx, i.address, domain.KonnectivityPort, i.want.ProxyAddress.String(), i.ca); err != nil {
		return fmt.Sprintf("the konnectivity server at %s port %d: %v", i.address, domain.KonnectivityPort, err)
	}
	_, err := i.super.api.AppsV1().DaemonSets(nsSystem).Get(ctx, "konnectivity-agent", metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return "DaemonSet kube-system/konnectivity-agent is missing"
	case err != nil:
		return fmt.Sprintf("read DaemonSet kube-system/konnectivity-agent: %v", err)
	}
	return ""
}
