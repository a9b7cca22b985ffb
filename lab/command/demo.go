package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"aether.internal/aether/lab/world"
	"aether.internal/aether/lab/world/control"
)

// What examples/tenant.yaml asks for.
const (
	demoTenant  = "demo"
	demoWorkers = 2
	demoHosts   = 2
)

func (l *lab) demoCommand() *cobra.Command {
	s := session{speed: defaultSpeed}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Start the lab, make a tenant, use its cluster, and end the lab",
		Long: `Builds what is missing, starts the lab, makes the tenant of examples/tenant.yaml
by the real CreateTenant workflow, uses the cluster with the published
kubeconfig, and ends the lab. Nothing is left over.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s.state, s.out = l.state, cmd.OutOrStdout()
			return s.demo(cmd.Context())
		},
	}
	s.bind(cmd)
	return cmd
}

// demo is the whole of it; its last line is for people and machines.
func (s *session) demo(ctx context.Context) error {
	if err := buildProduct(ctx, s.out); err != nil {
		return err
	}
	opts, err := s.prepare(ctx)
	if err != nil {
		return err
	}
	if err := adoptOrphans(); err != nil {
		return err
	}
	before, err := takeCensus()
	if err != nil {
		return err
	}
	d := demo{session: s, opts: opts}
	if err := s.up(ctx, d.run); err != nil {
		return err
	}
	after, err := takeCensus()
	if err != nil {
		return err
	}
	if err := after.since(before); err != nil {
		return err
	}
	printf(s.out, "demo: ready tenant=%s nodes=%d seconds=%.1f floor=%.1f speed=%g\n",
		demoTenant, d.nodes, d.took.Seconds(), d.floor.Seconds, s.speed)
	return nil
}

// demo is one run, with what it measured.
type demo struct {
	session *session
	opts    world.Options
	client  *control.Client
	status  control.Status

	took  time.Duration
	floor control.Floor
	nodes int
}

// errDemo is a demo that did not come to its end.
var errDemo = errors.New("the demo failed")

func (d *demo) run(ctx context.Context, client *control.Client, status control.Status) error {
	d.client, d.status = client, status
	var err error
	d.floor, err = client.Floor(ctx, control.FloorRequest{Workers: demoWorkers, Hosts: demoHosts, Tenant: true})
	if err != nil {
		return err
	}
	printf(d.session.out, "\n$ starter tenant create -f examples/tenant.yaml\n")
	begin := time.Now()
	tenant := filepath.Join(d.opts.Source, "examples", "tenant.yaml")
	if err := d.starter(ctx, os.Stdout, "tenant", "create", "-f", tenant); err != nil {
		return err
	}
	d.took = time.Since(begin)
	kubeconfig, err := d.publishedKubeconfig(ctx)
	if err != nil {
		return err
	}
	if err := d.useCluster(ctx, kubeconfig); err != nil {
		return err
	}
	printf(d.session.out, "\nkubeconfig   %s\nTemporal UI  http://%s\nlogs         %s\n",
		kubeconfig, status.Addresses[world.ForwardUI], status.Logs)
	printf(d.session.out, "These serve while the lab is up: `make lab` keeps it up.\n\n")
	return nil
}

// starter runs the product's command line inside the lab.
func (d *demo) starter(ctx context.Context, stdout *os.File, args ...string) error {
	command := control.Command{
		Args: append([]string{filepath.Join(d.opts.Product, "starter")}, args...), Dir: d.opts.Source,
	}
	nothing, err := os.Open(os.DevNull)
	if err != nil {
		return fmt.Errorf("run starter: %w", err)
	}
	defer func() { _ = nothing.Close() }() // nothing was written
	code, err := d.client.Exec(ctx, command, [3]*os.File{nothing, stdout, os.Stderr})
	if err != nil {
		return err
	}
	if code != 0 {
		return fmt.Errorf("%w: starter %v: exit status %d; logs are in %s", errDemo, args, code, d.status.Logs)
	}
	return nil
}

// publishedKubeconfig asks Aether for the tenant's kubeconfig and writes it
// with the way into the lab.
func (d *demo) publishedKubeconfig(ctx context.Context) (string, error) {
	reader, writer, err := os.Pipe()
	if err != nil {
		return "", fmt.Errorf("read kubeconfig: %w", err)
	}
	defer func() { _ = reader.Close() }() // it was read to its end
	read := make(chan []byte, 1)
	go func() {
		data, _ := io.ReadAll(reader) // a broken pipe shows as a broken kubeconfig
		read <- data
	}()
	err = errors.Join(d.starter(ctx, writer, "tenant", "kubeconfig", demoTenant), writer.Close())
	data := <-read
	if err != nil {
		return "", err
	}
	config, err := world.ThroughProxy(data, d.status.Addresses["proxy"])
	if err != nil {
		return "", err
	}
	path := filepath.Join(d.opts.Dir, demoTenant+".kubeconfig")
	if err := os.WriteFile(path, config, 0o600); err != nil {
		return "", fmt.Errorf("write kubeconfig: %w", err)
	}
	return path, nil
}
