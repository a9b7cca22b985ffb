package capi

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"aether.internal/aether/api/v1alpha1"
	"aether.internal/aether/internal/domain"
)

// approver approves the serving certificates of the kubelets of machines that
// we made, for as long as they live: kubelets renew theirs. Nobody else would;
// without it logs and exec are dead.
type approver struct {
	client client.Client
	log    *slog.Logger

	mu      sync.Mutex
	base    context.Context //nolint:containedctx // the manager's, for the tenants' watches
	tenants map[string]watched
}

// watched is one tenant that is being watched.
type watched struct {
	kubeconfig string // digest of it; a new one is a new watch
	stop       context.CancelFunc
}

func newApprover(c client.Client, log *slog.Logger) *approver {
	return &approver{client: c, log: log, tenants: map[string]watched{}}
}

// Start implements manager.Runnable.
func (a *approver) Start(ctx context.Context) error {
	a.mu.Lock()
	a.base = ctx
	a.mu.Unlock()
	<-ctx.Done()
	return nil
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (a *approver) NeedLeaderElection() bool { return true }

// errNotStarted tells that the manager has not handed over its context yet.
var errNotStarted = errors.New("approver is not started yet")

// watch watches a tenant over its management-side kubeconfig. An unchanged
// kubeconfig keeps the watch that there is.
func (a *approver) watch(tenant, digest string, kubeconfig []byte) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.base == nil {
		return errNotStarted
	}
	if old, ok := a.tenants[tenant]; ok {
		if old.kubeconfig == digest {
			return nil
		}
		old.stop()
		delete(a.tenants, tenant)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		return fmt.Errorf("management-side kubeconfig of tenant %s cannot be read", tenant) // without the cause, which may quote it
	}
	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("client of tenant %s: %w", tenant, err)
	}
	ctx, stop := context.WithCancel(a.base)
	a.tenants[tenant] = watched{kubeconfig: digest, stop: stop}
	go a.run(ctx, tenant, clientset)
	return nil
}

// forget ends the watch of a tenant.
func (a *approver) forget(tenant string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if old, ok := a.tenants[tenant]; ok {
		old.stop()
		delete(a.tenants, tenant)
	}
}

// run approves what may be approved until the context ends. What may not be
// approved yet, because the record of the machine lags behind, is looked at
// again with growing pauses.
func (a *approver) run(ctx context.Context, tenant string, clientset kubernetes.Interface) {
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())
	factory := informers.NewSharedInformerFactory(clientset, 0)
	informer := factory.Certificates().V1().CertificateSigningRequests().Informer()
	enqueue := func(o any) {
		if request, ok := o.(*certificatesv1.CertificateSigningRequest); ok && pending(request) {
			queue.Add(request.Name)
		}
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: enqueue, UpdateFunc: func(_, o any) { enqueue(o) }})
	if err != nil {
		a.log.Error("watch serving certificates", "tenant", tenant, "error", err)
		return
	}
	factory.Start(ctx.Done())
	go func() {
		<-ctx.Done()
		queue.ShutDown()
	}()
	for {
		name, shutdown := queue.Get()
		if shutdown {
			return
		}
		if err := a.approve(ctx, tenant, clientset, name); err != nil {
			a.log.Warn("serving certificate is not approved", "tenant", tenant, "request", name, "error", err)
			queue.AddRateLimited(name)
		} else {
			queue.Forget(name)
		}
		queue.Done(name)
	}
}

func pending(request *certificatesv1.CertificateSigningRequest) bool {
	return request.Spec.SignerName == certificatesv1.KubeletServingSignerName && len(request.Status.Conditions) == 0
}

// approve approves one request, or says why not.
func (a *approver) approve(ctx context.Context, tenant string, clientset kubernetes.Interface, name string) error {
	requests := clientset.CertificatesV1().CertificateSigningRequests()
	request, err := requests.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read request: %w", err)
	}
	if !pending(request) {
		return nil
	}
	machines := &v1alpha1.AetherVMList{}
	if err := a.client.List(ctx, machines, client.InNamespace(domain.SystemNamespace), client.MatchingLabels{domain.TenantLabel: tenant}); err != nil {
		return fmt.Errorf("list machines: %w", err)
	}
	if err := mayServe(request, machines.Items); err != nil {
		return err
	}
	request.Status.Conditions = append(request.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "AetherMachine",
		Message: "The names and addresses are those of a machine that Aether made and an AetherMachine has claimed.",
	})
	_, err = requests.UpdateApproval(ctx, name, request, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("approve: %w", err)
	}
	return nil
}

const (
	nodeUserPrefix = "system:node:"
	nodeGroup      = "system:nodes"
)

// mayServe returns nil when the request asks for exactly what a claimed worker
// may serve as: its own Node's identity, name and leased addresses.
func mayServe(request *certificatesv1.CertificateSigningRequest, machines []v1alpha1.AetherVM) error {
	if request.Spec.SignerName != certificatesv1.KubeletServingSignerName {
		return fmt.Errorf("signer %q is not the one for serving certificates", request.Spec.SignerName)
	}
	node, ok := strings.CutPrefix(request.Spec.Username, nodeUserPrefix)
	if !ok || !slices.Contains(request.Spec.Groups, nodeGroup) {
		return fmt.Errorf("requester %q of groups %q is not a node", request.Spec.Username, request.Spec.Groups)
	}
	if err := onlyServes(request.Spec.Usages); err != nil {
		return err
	}
	i := slices.IndexFunc(machines, func(vm v1alpha1.AetherVM) bool {
		return vm.Spec.Role == v1alpha1.RoleWorker && vm.Spec.VMName == node && vm.Spec.ClaimRef.Name != ""
	})
	if i < 0 {
		return fmt.Errorf("node %s is no machine that Aether made and an AetherMachine has claimed", node)
	}
	block, _ := pem.Decode(request.Spec.Request)
	if block == nil {
		return errors.New("the request is not PEM")
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return fmt.Errorf("the request cannot be read: %w", err)
	}
	if err := csr.CheckSignature(); err != nil {
		return fmt.Errorf("the request is not signed with its own key: %w", err)
	}
	if csr.Subject.CommonName != request.Spec.Username || !slices.Equal(csr.Subject.Organization, []string{nodeGroup}) {
		return fmt.Errorf("subject %s is not that of node %s", csr.Subject, node)
	}
	if len(csr.EmailAddresses) > 0 || len(csr.URIs) > 0 {
		return errors.New("the request names e-mail addresses or URIs")
	}
	for _, name := range csr.DNSNames {
		if name != node {
			return fmt.Errorf("DNS name %q is not that of node %s", name, node)
		}
	}
	return ownAddresses(csr, &machines[i])
}

// onlyServes makes sure that the certificate cannot be used as a client's.
func onlyServes(usages []certificatesv1.KeyUsage) error {
	allowed := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment, certificatesv1.UsageServerAuth}
	for _, usage := range usages {
		if !slices.Contains(allowed, usage) {
			return fmt.Errorf("usage %q is not one of a server", usage)
		}
	}
	if !slices.Contains(usages, certificatesv1.UsageServerAuth) {
		return fmt.Errorf("the request is not for a server: usages are %q", usages)
	}
	return nil
}

func ownAddresses(csr *x509.CertificateRequest, vm *v1alpha1.AetherVM) error {
	var own []netip.Addr
	for _, nic := range vm.Spec.NICs {
		if prefix, err := netip.ParsePrefix(nic.Address); err == nil {
			own = append(own, prefix.Addr())
		}
	}
	if len(csr.IPAddresses) == 0 {
		return errors.New("the request names no address")
	}
	for _, ip := range csr.IPAddresses {
		address, ok := netip.AddrFromSlice(ip)
		if !ok || !slices.Contains(own, address.Unmap()) {
			return fmt.Errorf("address %s is not leased to machine %s", ip, vm.Name)
		}
	}
	return nil
}
