package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"aether.internal/aether/lab/upstream"
)

// progressEvery is the time between two lines of a long build.
const progressEvery = 30 * time.Second

// productPackages are the mains of the product's programs; each binary has its
// folder's name.
func productPackages() []string {
	return []string{"./worker", "./starter", "./deploy/images/envoy/agent"}
}

// buildProduct builds the product's programs into build/bin.
func buildProduct(ctx context.Context, out io.Writer) error {
	builder, err := upstream.FromEnvironment(os.Getenv)
	if err != nil {
		return err
	}
	bin := filepath.Join(builder.Source, "build", "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return fmt.Errorf("build the product: %w", err)
	}
	begin := time.Now()
	printf(out, "lab: building worker, starter and agent into %s (about 5 minutes the first time, seconds afterwards)\n", bin)
	args := append([]string{"build", "-o", bin + string(filepath.Separator)}, productPackages()...)
	cmd := exec.CommandContext(ctx, builder.Go, args...)
	cmd.Dir = builder.Source
	// Without cgo: the agent runs where there are no shared libraries.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("build the product: %w", err)
	}
	built := make(chan error, 1)
	go func() { built <- cmd.Wait() }()
	for {
		select {
		case err := <-built:
			if err != nil {
				return errors.Join(fmt.Errorf("build the product: %w", err), errors.New(output.String()))
			}
			printf(out, "lab: built the product in %.1fs\n", time.Since(begin).Seconds())
			return nil
		case <-time.After(progressEvery):
			printf(out, "lab: still building the product, %.0fs so far\n", time.Since(begin).Seconds())
		}
	}
}
