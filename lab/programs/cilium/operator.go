package cilium

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/big"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// DefaultTaint is the start-up taint of nodes without a healthy agent.
const DefaultTaint = "node.cilium.io/agent-not-ready"

// operator is one run of cilium-operator.
type operator struct {
	settings settings
	api      *clients
	log      *slog.Logger
	changed  chan struct{}
}

// Operator is the main of cilium-operator-generic.
func Operator(ctx context.Context, args []string, log *slog.Logger) error {
	flags := flag.NewFlagSet("cilium-operator", flag.ContinueOnError)
	dir := flags.String("config-dir", configMapDir, "directory with the configuration")
	if err := flags.Parse(args); err != nil {
		return fmt.Errorf("cilium-operator: %w", err)
	}
	o := &operator{log: log, changed: make(chan struct{}, 1)}
	var err error
	if o.settings, err = readSettings(*dir); err != nil {
		return err
	}
	if o.api, err = inCluster(); err != nil {
		return err
	}
	var healthy atomic.Bool
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return serveHealth(ctx, "127.0.0.1:9234", healthy.Load) })
	group.Go(func() error {
		// The real one is healthy once it has reached the API server, leader
		// or not.
		if err := o.reach(ctx); err != nil {
			return err
		}
		healthy.Store(true)
		return o.lead(ctx)
	})
	return group.Wait()
}

// reach returns when the API server has answered.
func (o *operator) reach(ctx context.Context) error {
	for {
		_, err := o.api.core.Discovery().ServerVersion()
		if err == nil {
			return nil
		}
		o.log.Error("unable to contact k8s api-server", "error", err)
		if err := pause(ctx, configRetry); err != nil {
			return err
		}
	}
}

// Times of the operator's leader election.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

var errLostLease = errors.New("leader election lost")

// lead works while this operator holds the lease.
func (o *operator) lead(ctx context.Context) error {
	hostname, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("leader election: %w", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Name: "cilium-operator-resource-lock", Namespace: metav1.NamespaceSystem},
			Client:     o.api.core.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: hostname + "-" + strconv.Itoa(os.Getpid())},
		},
		LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod, ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) { cancel(o.run(ctx)) },
			OnStoppedLeading: func() { cancel(errLostLease) },
		},
	})
	if err != nil {
		return fmt.Errorf("leader election: %w", err)
	}
	elector.Run(ctx)
	return context.Cause(ctx)
}

func (o *operator) run(ctx context.Context) error {
	if o.settings.get("skip-crd-creation", "false") != "true" {
		if err := createCRDs(ctx, o.api); err != nil {
			return err
		}
	}
	if err := waitForCRDs(ctx, o.api, time.Minute); err != nil {
		return err
	}
	o.log.Info("CRDs are established")
	agents := o.watch(ctx)
	for {
		var again <-chan time.Time
		if err := o.pass(ctx, agents); err != nil && ctx.Err() == nil {
			o.log.Warn("not everything is in place", "error", err)
			again = time.After(agentRetry)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-o.changed:
		case <-again:
		}
	}
}

// watch pokes the loop at changes of nodes, CiliumNodes and agents; it returns
// the store of the agents' pods.
func (o *operator) watch(ctx context.Context) cache.Store {
	poke := func() {
		select {
		case o.changed <- struct{}{}:
		default: // a pass is due already
		}
	}
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { poke() }, UpdateFunc: func(any, any) { poke() }, DeleteFunc: func(any) { poke() },
	}
	nodes := informers.NewSharedInformerFactory(o.api.core, 0)
	pods := informers.NewSharedInformerFactoryWithOptions(
		o.api.core, 0, informers.WithNamespace(metav1.NamespaceSystem),
		informers.WithTweakListOptions(func(l *metav1.ListOptions) { l.LabelSelector = "k8s-app=cilium" }),
	)
	ciliumNodes := dynamicinformer.NewDynamicSharedInformerFactory(o.api.any, 0)
	agents := pods.Core().V1().Pods().Informer()
	for _, informer := range []cache.SharedIndexInformer{
		nodes.Core().V1().Nodes().Informer(), agents, ciliumNodes.ForResource(nodesResource()).Informer(),
	} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			o.log.Error("cannot watch", "error", err)
		}
	}
	nodes.Start(ctx.Done())
	pods.Start(ctx.Done())
	ciliumNodes.Start(ctx.Done())
	cache.WaitForCacheSync(ctx.Done(), agents.HasSynced)
	return agents.GetStore()
}

func (o *operator) pass(ctx context.Context, agents cache.Store) error {
	var errs []error
	if o.settings.get("ipam", "cluster-pool") == "cluster-pool" {
		errs = append(errs, o.allocate(ctx))
	}
	states := map[string]bool{} // node → its agent is ready
	for _, object := range agents.List() {
		if pod, ok := object.(*corev1.Pod); ok && pod.Spec.NodeName != "" && pod.DeletionTimestamp == nil {
			states[pod.Spec.NodeName] = podReady(pod)
		}
	}
	list, err := o.api.core.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return errors.Join(append(errs, fmt.Errorf("list nodes: %w", err))...)
	}
	for i := range list.Items {
		if ready, scheduled := states[list.Items[i].Name]; scheduled {
			errs = append(errs, o.mark(ctx, &list.Items[i], ready))
		}
	}
	return errors.Join(errs...)
}

func podReady(pod *corev1.Pod) bool {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == corev1.PodReady {
			return pod.Status.Conditions[i].Status == corev1.ConditionTrue
		}
	}
	return false
}

// allocate gives each CiliumNode without a range one from the pools.
func (o *operator) allocate(ctx context.Context) error {
	nodes, err := listNodes(ctx, o.api)
	if err != nil {
		return err
	}
	bits, err := strconv.Atoi(o.settings.get("cluster-pool-ipv4-mask-size", "24"))
	if err != nil {
		return fmt.Errorf("cluster-pool-ipv4-mask-size: %w", err)
	}
	used := map[netip.Prefix]bool{}
	for i := range nodes {
		used[nodes[i].podCIDR()] = true
	}
	for i := range nodes {
		if nodes[i].podCIDR().IsValid() {
			continue
		}
		free, err := nextRange(strings.Fields(o.settings.get("cluster-pool-ipv4-cidr", "10.0.0.0/8")), bits, used)
		if err != nil {
			return err
		}
		if err := setPodCIDR(ctx, o.api, nodes[i].Name, free); err != nil {
			return err
		}
		used[free] = true
		o.log.Info("allocated", "node", nodes[i].Name, "cidr", free)
	}
	return nil
}

// nextRange returns the first range of that size that nobody has.
func nextRange(pools []string, bits int, used map[netip.Prefix]bool) (netip.Prefix, error) {
	for _, text := range pools {
		pool, err := netip.ParsePrefix(text)
		if err != nil {
			return netip.Prefix{}, fmt.Errorf("cluster-pool-ipv4-cidr: %w", err)
		}
		step := new(big.Int).Lsh(big.NewInt(1), uint(32-bits))
		for ip := pool.Masked().Addr(); pool.Contains(ip); {
			candidate := netip.PrefixFrom(ip, bits)
			if !used[candidate] {
				return candidate, nil
			}
			next := new(big.Int).Add(new(big.Int).SetBytes(ip.AsSlice()), step)
			bytes := next.FillBytes(make([]byte, 5))
			if bytes[0] != 0 {
				break // the end of the address space
			}
			ip, _ = netip.AddrFromSlice(bytes[1:])
		}
	}
	return netip.Prefix{}, fmt.Errorf("pools %v have no free /%d left", pools, bits)
}
