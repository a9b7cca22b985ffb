package scenario_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"aether.internal/aether/lab/namespace"
	"aether.internal/aether/lab/scenario"
	"aether.internal/aether/lab/upstream"
	"aether.internal/aether/lab/world"
)

var (
	list   = flag.Bool("list-scenarios", false, "list the scenarios and end")
	choice = flag.String("scenarios", "", "run the scenarios whose name matches this regular expression")
)

// The scenarios run in namespaces, where nothing can be built: what is needed
// is built before.
func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if code, ok := world.Dispatch(); ok {
		return code
	}
	flag.Parse()
	if *list {
		for _, s := range scenario.All() {
			fmt.Printf("%-26s %s\n", s.Name, s.Proves)
		}
		return 0
	}
	if !namespace.Inside() {
		if err := prepare(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return world.RunTests(m)
}

func prepare(ctx context.Context) error {
	if err := upstream.Share(ctx, os.Stderr, upstream.Names()...); err != nil {
		return err
	}
	if _, err := upstream.EnsureCAPIManifests(ctx); err != nil {
		return err
	}
	dir, err := product()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "scenarios: building the product (minutes the first time, seconds afterwards)")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", dir+string(filepath.Separator), "./worker", "./starter", "./deploy/images/envoy/agent")
	cmd.Dir, cmd.Env = filepath.Dir(filepath.Dir(dir)), append(os.Environ(), "CGO_ENABLED=0")
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Run(); err != nil {
		return errors.Join(fmt.Errorf("build the product: %w", err), errors.New(output.String()))
	}
	return nil
}

// product is the folder of the product's programs.
func product() (string, error) {
	builder, err := upstream.FromEnvironment(os.Getenv)
	if err != nil {
		return "", err
	}
	return filepath.Join(builder.Source, "build", "bin"), nil
}

// chosen are the scenarios that the flag asks for.
func chosen(t *testing.T) []scenario.Scenario {
	t.Helper()
	pattern, err := regexp.Compile(*choice)
	if err != nil {
		t.Fatalf("-scenarios: %v", err)
	}
	all := slices.DeleteFunc(scenario.All(), func(s scenario.Scenario) bool { return !pattern.MatchString(s.Name) })
	if len(all) == 0 {
		t.Fatalf("-scenarios: no scenario matches %q; -list-scenarios lists them", *choice)
	}
	return all
}

// runTime bounds one scenario.
const runTime = 6 * time.Minute

func TestScenarios(t *testing.T) {
	all := chosen(t)
	bin, err := product()
	if err != nil {
		t.Fatal(err)
	}
	lab, err := scenario.Start(t.Context(), all, t.TempDir(), bin, os.Stdout)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := lab.World.Stop(); err != nil {
			t.Error(err)
		}
	}()
	for i, s := range all {
		t.Run(s.Name, func(t *testing.T) {
			fmt.Printf("scenario %s: running (%d of %d)\n", s.Name, i+1, len(all))
			ctx, cancel := context.WithTimeout(t.Context(), runTime)
			defer cancel()
			result, err := lab.Run(ctx, s, t.TempDir(), t.Logf)
			if err != nil {
				fmt.Printf("scenario %s: FAILED: %v\n", s.Name, err)
				t.Fatal(err)
			}
			fmt.Printf("scenario %s: %s\n", s.Name, result)
		})
	}
}
