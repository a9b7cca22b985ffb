package world

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"aether.internal/aether/lab/site"
	"aether.internal/aether/lab/upstream/process"
)

// Addresses of the product's programs on the platform.
const (
	temporalAddress = "127.0.0.1:7233"
	codecAddress    = "127.0.0.1:8088"
)

// productProgram is one of the product's programs as an operator would run it.
type productProgram struct {
	name   string
	binary string
	args   []string
	health string // address of its health server; /readyz is asked there
}

// productPrograms are the command lines of the product.
func (w *World) productPrograms() []productProgram {
	kubeconfig := "--kubeconfig=" + w.insideKubeconfig()
	siteFile := "--site=" + w.SiteFile()
	temporal := "--temporal-address=" + temporalAddress
	keys := "--codec-keys=" + site.CodecKeysFile(w.siteDir())
	program := func(name, binary string, port int, args ...string) productProgram {
		health := fmt.Sprintf("127.0.0.1:%d", port)
		args = append(args, "--health-address="+health, fmt.Sprintf("--metrics-address=127.0.0.1:%d", port+100))
		return productProgram{name, binary, args, health}
	}
	return []productProgram{
		program("worker", "worker", 8091, kubeconfig, siteFile, temporal, keys),
		program("xds", "starter", 8092, "serve", "xds", kubeconfig, siteFile),
		program("shim", "starter", 8093, "serve", "shim", kubeconfig, siteFile, temporal, keys),
		program("codec", "starter", 8094, "serve", "codec", keys, "--listen-address="+codecAddress, "--origin="+w.uiOrigin()),
	}
}

// ClientEnvironment is what the product's command line needs to find the
// platform from inside the lab.
func (w *World) ClientEnvironment() []string {
	return []string{
		"KUBECONFIG=" + w.insideKubeconfig(), "AETHER_KUBECONFIG=" + w.insideKubeconfig(), "AETHER_SITE=" + w.SiteFile(),
		"AETHER_TEMPORAL_ADDRESS=" + temporalAddress, "AETHER_CODEC_KEYS=" + site.CodecKeysFile(w.siteDir()),
	}
}

// uiOrigin is the page that may ask the codec server for clear text.
func (w *World) uiOrigin() string {
	if address := w.opts.Outside[ForwardUI]; address != "" {
		return "http://" + address
	}
	return "http://127.0.0.1:8233"
}

// startProduct starts the product's programs and waits until each says that
// it is ready.
func (w *World) startProduct(ctx context.Context) error {
	programs := w.productPrograms()
	started := make([]*child, 0, len(programs))
	for _, p := range programs {
		path := filepath.Join(w.opts.Product, p.binary)
		if _, err := os.Stat(path); err != nil {
			return errors.Join(err, errors.New("build the product first: `make build`"))
		}
		c := &child{program: p, path: path, world: w}
		if err := c.launch(); err != nil {
			return err
		}
		w.supervise(&component{
			name: p.name, address: p.health, logFile: w.logPath(p.name), process: c.current,
			kill: c.kill, restart: c.restart, stop: c.stop,
		})
		started = append(started, c)
	}
	for _, c := range started {
		if err := c.waitReady(ctx); err != nil {
			return err
		}
	}
	return nil
}

// child is a running program of the product.
type child struct {
	program productProgram
	path    string
	world   *World

	mu      sync.Mutex
	process *process.Process
}

func (c *child) current() *process.Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.process
}

func (c *child) launch() error {
	p, err := process.Start(process.Spec{
		Name: c.program.name, Program: c.path, Args: c.program.args, LogFile: c.world.logPath(c.program.name),
		Net: c.world.Fabric.Platform(),
		// A home of its own: Helm and others write to it.
		Env: []string{"HOME=" + filepath.Join(c.world.opts.Dir, "run", "home")},
	})
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.process = p
	return nil
}

// waitReady asks the health server.
func (c *child) waitReady(ctx context.Context) error {
	client := process.HTTPClient(c.world.Fabric.Platform(), nil)
	return c.current().WaitReady(ctx, process.HTTPProbe(client, "http://"+c.program.health+"/readyz"))
}

func (c *child) kill() error { return c.current().Kill() }

func (c *child) stop() error { return c.current().Stop(stopGrace) }

func (c *child) restart(ctx context.Context) error {
	if c.current().Running() {
		if err := c.stop(); err != nil {
			return err
		}
	}
	if err := c.launch(); err != nil {
		return err
	}
	return c.waitReady(ctx)
}
