package world

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"aether.internal/aether/api/crds"
	"aether.internal/aether/lab/controlplane"
	"aether.internal/aether/lab/kamaji"
	"aether.internal/aether/lab/upstream"
	"aether.internal/aether/lab/upstream/process"
)

// Where tenants' control planes keep their state, and how the management
// cluster knows it.
const (
	storeName       = "default"
	storeNamespace  = "kamaji-system"
	storePort       = 2389
	storePeerPort   = 2390
	webhookPort     = 9445
	systemNamespace = "aether-system"
)

// installKinds installs the definitions of Aether and Kamaji and the
// platform's namespace.
func (w *World) installKinds(ctx context.Context) error {
	if err := kamaji.InstallCRDs(ctx, w.administrator()); err != nil {
		return err
	}
	definitions, err := crds.All()
	if err != nil {
		return err
	}
	client, err := apiextensions.NewForConfig(w.administrator())
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	api := client.ApiextensionsV1().CustomResourceDefinitions()
	for _, d := range definitions {
		if _, err := api.Create(ctx, d, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create definition %s: %w", d.Name, err)
		}
	}
	for _, d := range definitions {
		err := w.eventually(ctx, func(ctx context.Context) error {
			got, err := api.Get(ctx, d.Name, metav1.GetOptions{})
			if err != nil {
				return fmt.Errorf("read definition %s: %w", d.Name, err)
			}
			return established(got)
		})
		if err != nil {
			return err
		}
	}
	return w.createNamespace(ctx, systemNamespace)
}

// established tells why a definition is not served yet.
func established(d *apiextensionsv1.CustomResourceDefinition) error {
	for _, c := range d.Status.Conditions {
		if c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue {
			return nil
		}
	}
	return fmt.Errorf("definition %s is not established: %v", d.Name, d.Status.Conditions)
}

func (w *World) createNamespace(ctx context.Context, name string) error {
	client, err := kubernetes.NewForConfig(w.administrator())
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create namespace %s: %w", name, err)
	}
	return nil
}

// startStore starts the etcd that tenants' control planes share.
func (w *World) startStore(ctx context.Context) error {
	log, err := w.logger(partStore)
	if err != nil {
		return err
	}
	store, err := controlplane.StartEtcd(ctx, controlplane.EtcdConfig{
		Name: "tenants", Dir: filepath.Join(w.opts.Dir, "run", "tenants-etcd"), Net: w.Fabric.Platform(),
		Address: netip.MustParseAddr(platformAddress), Port: storePort, PeerPort: storePeerPort,
		Kubernetes: w.opts.Programs[upstream.Kubernetes], Log: log,
	})
	if err != nil {
		return err
	}
	w.onStop(store.Stop)
	if err := w.linkLog("tenants-etcd", store.LogFile()); err != nil {
		return err
	}
	password, err := store.EnableAuth(ctx)
	if err != nil {
		return err
	}
	w.secrets.add("password of root in the tenants' etcd", password)
	w.supervise(&component{
		name: "tenants-etcd", address: store.Endpoint(), logFile: store.LogFile(),
		process: func() *process.Process { return store.Process() }, kill: store.Kill, restart: store.Restart,
	})
	w.store = store
	return nil
}

func (w *World) startKamaji(ctx context.Context) error {
	log, err := w.logger(partKamaji)
	if err != nil {
		return err
	}
	ca, root := w.store.CA(), w.store.Root()
	err = kamaji.InstallDataStore(ctx, w.administrator(), kamaji.EtcdDataStore{
		Name: storeName, Namespace: storeNamespace, Endpoints: []string{net.JoinHostPort(platformAddress, fmt.Sprint(storePort))},
		CACert: ca.Certificate, CAKey: ca.Key, Cert: root.Certificate, Key: root.Key,
	})
	if err != nil {
		return err
	}
	address := net.JoinHostPort(platformAddress, fmt.Sprint(webhookPort))
	k, err := kamaji.New(kamaji.Config{
		RestConfig: w.administrator(), Clock: w.Clock, Faults: w.faults, Log: log, DataStore: storeName,
		WebhookAddress: address, Dial: w.Fabric.Platform().DialContext,
	})
	if err != nil {
		return err
	}
	w.run(partKamaji, address, k.Run)
	return nil
}
