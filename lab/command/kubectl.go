package command

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"aether.internal/aether/lab/upstream"
)

// The pod that the demo runs in the tenant's cluster.
const (
	demoPod   = "hello"
	demoImage = "registry.k8s.io/e2e-test-images/agnhost:2.53"
)

// useCluster does with the published kubeconfig what a tenant would do first:
// look at the nodes, run a pod, read its log, execute something in it.
func (d *demo) useCluster(ctx context.Context, kubeconfig string) error {
	show := func(args ...string) error {
		printf(d.session.out, "\n$ kubectl %s\n", strings.Join(args, " "))
		return d.kubectl(ctx, kubeconfig, d.session.out, args...)
	}
	for _, args := range [][]string{
		{"get", "nodes", "-o", "wide"},
		{"run", demoPod, "--image=" + demoImage, "--restart=Never", "--", "netexec"},
		{"wait", "--for=condition=Ready", "pod/" + demoPod, "--timeout=60s"},
		{"get", "pods", "-A", "-o", "wide"},
		{"logs", demoPod},
	} {
		if err := show(args...); err != nil {
			return err
		}
	}
	if err := d.countNodes(ctx, kubeconfig); err != nil {
		return err
	}
	var said bytes.Buffer
	exec := []string{"exec", demoPod, "--", "hostname"}
	printf(d.session.out, "\n$ kubectl %s\n", strings.Join(exec, " "))
	if err := d.kubectl(ctx, kubeconfig, io.MultiWriter(d.session.out, &said), exec...); err != nil {
		return err
	}
	if got := strings.TrimSpace(said.String()); got != demoPod {
		return fmt.Errorf("%w: hostname in the pod is %q, want %q", errDemo, got, demoPod)
	}
	return nil
}

// countNodes counts the nodes that are Ready, and fails unless all workers
// are.
func (d *demo) countNodes(ctx context.Context, kubeconfig string) error {
	var out bytes.Buffer
	if err := d.kubectl(ctx, kubeconfig, &out, "get", "nodes", "-o", "json"); err != nil {
		return err
	}
	var list struct {
		Items []struct {
			Status struct {
				Conditions []struct{ Type, Status string }
			}
		}
	}
	if err := json.Unmarshal(out.Bytes(), &list); err != nil {
		return fmt.Errorf("read nodes: %w", err)
	}
	for _, node := range list.Items {
		for _, c := range node.Status.Conditions {
			if c.Type == "Ready" && c.Status == "True" {
				d.nodes++
			}
		}
	}
	if d.nodes != demoWorkers {
		return fmt.Errorf("%w: %d of %d nodes are Ready", errDemo, d.nodes, demoWorkers)
	}
	return nil
}

// kubectl runs the real kubectl on the machine, outside of the lab.
func (d *demo) kubectl(ctx context.Context, kubeconfig string, out io.Writer, args ...string) error {
	cmd := exec.CommandContext(ctx, d.opts.Programs[upstream.Kubernetes], append([]string{"--kubeconfig", kubeconfig}, args...)...)
	cmd.Args[0] = "kubectl" // one program of many
	cmd.Stdout, cmd.Stderr = out, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%w: kubectl %s: %w", errDemo, strings.Join(args, " "), err)
	}
	return nil
}
