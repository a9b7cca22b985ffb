package scenario

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"aether.internal/aether/internal/plan"
	"aether.internal/aether/lab/world/control"
)

// output is what a command wrote and how it ended.
type output struct {
	code   int
	stdout string
	stderr string
}

// starter runs the product's command line on the platform, as an operator
// does. An empty site file is the lab's own.
func (t *T) starter(ctx context.Context, siteFile string, args ...string) (output, error) {
	t.Logf("starter %s", strings.Join(args, " "))
	dir, err := os.MkdirTemp(t.Dir, "starter")
	if err != nil {
		return output{}, fmt.Errorf("run starter: %w", err)
	}
	files := [3]*os.File{}
	for i, name := range []string{os.DevNull, filepath.Join(dir, "stdout"), filepath.Join(dir, "stderr")} {
		flags := os.O_RDWR
		if i > 0 {
			flags |= os.O_CREATE
		}
		if files[i], err = os.OpenFile(name, flags, 0o600); err != nil {
			return output{}, fmt.Errorf("run starter: %w", err)
		}
		defer func() { _ = files[i].Close() }() // read below by name
	}
	command := control.Command{Args: append([]string{filepath.Join(t.Product, "starter")}, args...), Dir: t.Source}
	if siteFile != "" {
		command.Env = []string{"AETHER_SITE=" + siteFile}
	}
	out := output{}
	if out.code, err = t.World.Exec(ctx, command, files); err != nil {
		return output{}, err
	}
	for i, text := range []*string{1: &out.stdout, 2: &out.stderr} {
		if text == nil {
			continue
		}
		data, err := os.ReadFile(files[i].Name())
		if err != nil {
			return output{}, fmt.Errorf("run starter: %w", err)
		}
		*text = string(data)
	}
	return out, nil
}

// planRefusal asks for the plan of a tenant and returns the checks that
// failed. It is an error when none did.
func (t *T) planRefusal(ctx context.Context, siteFile, tenantFile string) ([]plan.Check, error) {
	out, err := t.starter(ctx, siteFile, "tenant", "plan", "-f", tenantFile, "-o", "json")
	if err != nil {
		return nil, err
	}
	made := plan.Plan{}
	if err := json.Unmarshal([]byte(out.stdout), &made); err != nil {
		return nil, unexpected("starter tenant plan ended with %d and no plan: %s", out.code, out.stderr)
	}
	var failed []plan.Check
	for _, c := range made.Checks {
		if !c.Passed {
			failed = append(failed, c)
		}
	}
	if len(failed) == 0 || out.code == 0 {
		return nil, unexpected("the plan was accepted (exit status %d): %s", out.code, out.stdout)
	}
	return failed, nil
}

// refusedBy returns the outcome for the check of that name, and an error when
// it did not fail or does not say what to do.
func refusedBy(failed []plan.Check, name string) (string, error) {
	var names []string
	for _, c := range failed {
		if c.Name == name && c.Do != "" {
			return refused(fmt.Sprintf("%s: found %s; needed %s; %s", c.Name, c.Found, c.Needed, c.Do)), nil
		}
		names = append(names, c.Name)
	}
	return "", unexpected("check %q did not fail; these did: %s", name, strings.Join(names, ", "))
}

// fileRefusal runs the plan with a site or tenant file that must be refused as
// such, and returns what is said about the field.
func (t *T) fileRefusal(ctx context.Context, siteFile, tenantFile, field string) (string, error) {
	out, err := t.starter(ctx, siteFile, "tenant", "plan", "-f", tenantFile)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(out.stderr) {
		if out.code != 0 && strings.Contains(line, field) {
			return refused(line[strings.Index(line, field):len(strings.TrimRight(line, "\n"))]), nil
		}
	}
	return "", unexpected("exit status %d and nothing about %s: %s%s", out.code, field, out.stderr, out.stdout)
}

// tenantFile is a tenant of the scenario: its own file, or the common one.
func (t *T) tenantFile() string {
	if _, err := os.Stat(t.Testdata("tenant.yaml")); err == nil {
		return t.Testdata("tenant.yaml")
	}
	return filepath.Join(filepath.Dir(t.Testdata("")), "tenant.yaml")
}

// site writes a copy of the lab's site file with the changes that the
// scenario's site.yaml lists, a path and its value a line.
func (t *T) site() (string, error) {
	data, err := os.ReadFile(t.Testdata("site.yaml"))
	if err != nil {
		return "", fmt.Errorf("read the changes of the site: %w", err)
	}
	changes := map[string]any{}
	if err := yaml.UnmarshalStrict(data, &changes); err != nil {
		return "", fmt.Errorf("read %s: %w", t.Testdata("site.yaml"), err)
	}
	dir := filepath.Join(t.Dir, "site")
	if err := copyDir(filepath.Dir(t.World.SiteFile()), dir); err != nil {
		return "", err
	}
	file := filepath.Join(dir, filepath.Base(t.World.SiteFile()))
	if data, err = os.ReadFile(file); err != nil {
		return "", fmt.Errorf("read site: %w", err)
	}
	var document any
	if err := yaml.Unmarshal(data, &document); err != nil {
		return "", fmt.Errorf("read site: %w", err)
	}
	for path, value := range changes {
		if document, err = replace(document, strings.Split(path, "."), value); err != nil {
			return "", fmt.Errorf("change %s of the site: %w", path, err)
		}
	}
	if data, err = yaml.Marshal(document); err != nil {
		return "", fmt.Errorf("write site: %w", err)
	}
	if err := os.WriteFile(file, data, 0o600); err != nil {
		return "", fmt.Errorf("write site: %w", err)
	}
	return file, nil
}

// copyDir copies a folder, also over an earlier copy.
func copyDir(from, to string) error {
	if err := os.RemoveAll(to); err != nil {
		return fmt.Errorf("copy %s: %w", from, err)
	}
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		return fmt.Errorf("copy %s: %w", from, err)
	}
	return nil
}

// replace sets the value at a path of names and positions in a document.
func replace(document any, path []string, value any) (any, error) {
	if len(path) == 0 {
		return value, nil
	}
	var err error
	switch d := document.(type) {
	case map[string]any:
		d[path[0]], err = replace(d[path[0]], path[1:], value)
		return d, err
	case []any:
		i, numberErr := strconv.Atoi(path[0])
		if numberErr != nil || i < 0 || i >= len(d) {
			return nil, fmt.Errorf("%q is not a position in a list of %d", path[0], len(d))
		}
		d[i], err = replace(d[i], path[1:], value)
		return d, err
	case nil:
		child, err := replace(nil, path[1:], value)
		return map[string]any{path[0]: child}, err
	}
	return nil, fmt.Errorf("%q: there is nothing below a value", path[0])
}
