package world_test

import (
	"context"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.temporal.io/sdk/client"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	product "aether.internal/aether/internal/site"
	"aether.internal/aether/lab/faults"
	"aether.internal/aether/lab/world"
	"aether.internal/aether/lab/world/control"
)

// startWorld starts a lab without the product.
func startWorld(t *testing.T, parts ...string) (*world.World, string) {
	t.Helper()
	opts, err := world.FromCheckout(t.Context(), os.Stderr, world.TestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	// t.TempDir is too long a path for a socket under some TMPDIRs.
	if opts.Dir, err = os.MkdirTemp("", "lab"); err != nil {
		t.Fatal(err)
	}
	opts.Out, opts.Parts = t.Output(), parts
	w, err := world.Start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
		if err := os.RemoveAll(opts.Dir); err != nil {
			t.Error(err)
		}
	})
	return w, opts.Dir
}

func eventually(t *testing.T, what string, probe func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if probe() {
			return
		}
	}
	t.Fatalf("%s does not come", what)
}

// TestPlatform starts everything that is not the product and uses it.
func TestPlatform(t *testing.T) {
	w, dir := startWorld(t, "site", "node", "services", "temporal", "kamaji", "capi")
	lab := control.NewClient(dir)
	status, err := lab.WaitReady(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Run("site file is one the product reads", func(t *testing.T) {
		if _, err := product.Load(status.Site); err != nil {
			t.Error(err)
		}
	})
	t.Run("management cluster runs pods", func(t *testing.T) { runsPods(t, w) })
	t.Run("a component is killed and started again", func(t *testing.T) { restarts(t, w, lab) })
	t.Run("API server comes back with its objects", func(t *testing.T) {
		if err := lab.Restart(t.Context(), "mgmt-kube-apiserver"); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the node", func() bool {
			_, err := clientset(t, w).CoreV1().Nodes().Get(t.Context(), "mgmt", metav1.GetOptions{})
			return err == nil
		})
	})
	t.Run("faults reach the simulators", func(t *testing.T) {
		if _, err := lab.Inject(t.Context(), faults.Fault{Kind: faults.Away, Place: "pve/api/pv1-1"}); err != nil {
			t.Fatal(err)
		}
		list := w.Faults().List()
		if len(list) != 1 || list[0].Place != "pve/api/pv1-1" {
			t.Errorf("faults in force are %+v", list)
		}
		if n, err := lab.Clear(t.Context(), ""); n != 1 || err != nil {
			t.Errorf("cleared %d, %v", n, err)
		}
	})
	t.Run("a host without power answers nobody", func(t *testing.T) { hostOff(t, w, lab) })
	t.Run("secrets are handed out", func(t *testing.T) { secrets(t, lab) })
	t.Run("commands run inside", func(t *testing.T) { commands(t, lab) })
}

func clientset(t *testing.T, w *world.World) kubernetes.Interface {
	t.Helper()
	api, err := kubernetes.NewForConfig(w.RestConfig())
	if err != nil {
		t.Fatal(err)
	}
	return api
}

func runsPods(t *testing.T, w *world.World) {
	pods := clientset(t, w).CoreV1().Pods("default")
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "web", Image: "registry.k8s.io/e2e-test-images/agnhost:2.53", Args: []string{"netexec"},
		}}},
	}
	eventually(t, "the service account", func() bool {
		_, err := pods.Create(t.Context(), pod, metav1.CreateOptions{})
		return err == nil
	})
	eventually(t, "the pod", func() bool {
		got, err := pods.Get(t.Context(), "web", metav1.GetOptions{})
		return err == nil && got.Status.Phase == corev1.PodRunning && strings.HasPrefix(got.Status.PodIP, "10.250.")
	})
}

func restarts(t *testing.T, w *world.World, lab *control.Client) {
	healthy := func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		c, err := client.DialContext(ctx, w.Temporal.ClientOptions())
		if err != nil {
			return false
		}
		c.Close()
		return true
	}
	if err := lab.Kill(t.Context(), "temporal"); err != nil {
		t.Fatal(err)
	}
	if healthy() {
		t.Error("Temporal answers after it was killed")
	}
	status, err := lab.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if c, ok := status.Component("temporal"); !ok || c.State != control.Killed {
		t.Errorf("status of temporal is %+v", c)
	}
	if err := lab.Restart(t.Context(), "temporal"); err != nil {
		t.Fatal(err)
	}
	if !healthy() {
		t.Error("Temporal does not answer after a restart")
	}
	if err := lab.Kill(t.Context(), "nobody"); err == nil || !strings.Contains(err.Error(), `component "nobody" is not in this lab`) {
		t.Errorf("error for an unknown component is %v", err)
	}
}

func hostOff(t *testing.T, w *world.World, lab *control.Client) {
	reach := func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		conn, err := w.Fabric.Platform().DialContext(ctx, "tcp", net.JoinHostPort("192.168.0.10", "8006"))
		if err != nil {
			return false
		}
		return conn.Close() == nil
	}
	if !reach() {
		t.Fatal("the host does not answer from the start")
	}
	if err := lab.SetHost(t.Context(), "pv1-2", false); err != nil {
		t.Fatal(err)
	}
	if reach() {
		t.Error("the host answers without power")
	}
	if err := lab.SetHost(t.Context(), "pv1-2", true); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the host", reach)
}

func secrets(t *testing.T, lab *control.Client) {
	list, err := lab.Secrets(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range list {
		names = append(names, s.Name)
	}
	for _, want := range []string{"Proxmox token aether@pve!aether", "SSH key of root", "codec key", "ca.key of secret kamaji-system/default-etcd-certs"} {
		if !strings.Contains(strings.Join(names, "\n"), want) {
			t.Errorf("%q is not among %q", want, names)
		}
	}
}

func commands(t *testing.T, lab *control.Client) {
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	stdio := [3]*os.File{os.Stdin, writer, os.Stderr}
	code, err := lab.Exec(t.Context(), control.Command{Args: []string{"/bin/sh", "-c", "echo $AETHER_TEMPORAL_ADDRESS; exit 3"}}, stdio)
	if err != nil || code != 3 {
		t.Errorf("exit code is %d, %v; want 3", code, err)
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	said := make([]byte, 100)
	n, err := reader.Read(said)
	if err != nil || string(said[:n]) != "127.0.0.1:7233\n" {
		t.Errorf("output is %q, %v", said[:n], err)
	}
	if _, err := lab.Exec(t.Context(), control.Command{Args: []string{"/no/such/program"}}, stdio); err == nil {
		t.Error("a program that is not there gives no error")
	}
}

// TestDeathEndsTheWorld proves that a part which dies is named with its last
// words.
func TestDeathEndsTheWorld(t *testing.T) {
	w, dir := startWorld(t, "temporal")
	status, err := control.NewClient(dir).Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c, ok := status.Component("temporal")
	if !ok {
		t.Fatalf("no temporal in %+v", status.Components)
	}
	if err := syscall.Kill(c.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	err = w.Wait()
	if err == nil || !strings.Contains(err.Error(), "temporal ended") || !strings.Contains(err.Error(), "last lines of") {
		t.Errorf("the world ends with %v", err)
	}
}
