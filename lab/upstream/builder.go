package upstream

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Builder builds the programs, or finds those that were built before. Its
// fields are read from the environment by FromEnvironment.
type Builder struct {
	// Source is the root of Aether's checkout.
	Source string
	// Cache is the folder the programs are kept in.
	Cache string
	// Programs names programs that are on the machine already and serve
	// instead of built ones.
	Programs Paths
	// Go is the go command.
	Go string
	// Every is the time between two lines of progress.
	Every time.Duration
}

// FromEnvironment sets a Builder up: AETHER_SOURCE is the checkout (else it is
// looked for around the working directory and the running program),
// AETHER_CACHE the cache (else the user's), and AETHER_KUBERNETES,
// AETHER_CAPI, AETHER_KONNECTIVITY_SERVER, AETHER_KONNECTIVITY_AGENT and
// AETHER_TEMPORAL name programs that serve instead of built ones.
func FromEnvironment(getenv func(string) string) (*Builder, error) {
	b := &Builder{Go: "go", Every: 30 * time.Second, Programs: Paths{}}
	for _, name := range Names() {
		variable := variableOf(name)
		path := getenv(variable)
		if path == "" {
			continue
		}
		if _, err := os.Stat(path); err != nil {
			return nil, fmt.Errorf("%s names the program that serves as %s: %w", variable, name, err)
		}
		b.Programs[name] = path
	}
	cache := getenv("AETHER_CACHE")
	if cache == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return nil, fmt.Errorf("find the user's cache (AETHER_CACHE may name another): %w", err)
		}
		cache = filepath.Join(user, "aether")
	}
	b.Cache = filepath.Join(cache, "upstream")
	b.Source = getenv("AETHER_SOURCE")
	if b.Source == "" {
		// Not found is no error yet: given programs need no checkout.
		b.Source, _ = findCheckout(startingPoints()...)
	}
	return b, nil
}

// variableOf is the environment variable that names a given program.
func variableOf(name Name) string {
	return "AETHER_" + strings.ToUpper(strings.ReplaceAll(string(name), "-", "_"))
}

// startingPoints are where the search for the checkout begins.
func startingPoints() []string {
	var from []string
	if dir, err := os.Getwd(); err == nil {
		from = append(from, dir)
	}
	if exe, err := os.Executable(); err == nil {
		from = append(from, filepath.Dir(exe))
	}
	return from
}

// Ensure makes the programs available, with a Builder from the environment,
// and says where they are. What is built is told on out.
func Ensure(ctx context.Context, out io.Writer, names ...Name) (Paths, error) {
	b, err := FromEnvironment(os.Getenv)
	if err != nil {
		return nil, err
	}
	return b.Ensure(ctx, out, names...)
}

// Share does what Ensure does and names the programs in this process's
// environment. Inside the lab's namespaces is no network to build with; a
// process that is about to enter them calls Share first, and Ensure inside
// finds the same programs.
func Share(ctx context.Context, out io.Writer, names ...Name) error {
	paths, err := Ensure(ctx, out, names...)
	if err != nil {
		return err
	}
	for name, path := range paths {
		if err := os.Setenv(variableOf(name), path); err != nil {
			return fmt.Errorf("name %s in the environment: %w", name, err)
		}
	}
	return nil
}

// Ensure builds those of the programs that are neither given nor in the cache.
// One is built after the other, also across processes: two builds side by
// side would only share the same processors.
func (b *Builder) Ensure(ctx context.Context, out io.Writer, names ...Name) (Paths, error) {
	paths := Paths{}
	for _, name := range names {
		if given := b.Programs[name]; given != "" {
			paths[name] = given
			continue
		}
		p, err := findProgram(name)
		if err != nil {
			return nil, err
		}
		if paths[name], err = b.ensure(ctx, out, p); err != nil {
			return nil, fmt.Errorf("provide %s: %w", name, err)
		}
	}
	return paths, nil
}

func (b *Builder) ensure(ctx context.Context, out io.Writer, p program) (string, error) {
	dir, err := b.moduleDir(p.module)
	if err != nil {
		return "", err
	}
	version, err := requiredVersion(filepath.Join(dir, "go.mod"), p.upstream)
	if err != nil {
		return "", err
	}
	key, err := b.key(ctx, p, dir, version)
	if err != nil {
		return "", err
	}
	path := filepath.Join(b.Cache, fmt.Sprintf("%s-%s-%s", p.name, version, key))
	if found, err := use(path); found || err != nil {
		return path, err
	}
	if err := os.MkdirAll(b.Cache, 0o755); err != nil {
		return "", err
	}
	told := &progress{out: out, what: fmt.Sprintf("%s %s", p.name, version), every: b.Every}
	unlock, err := lock(ctx, filepath.Join(b.Cache, "build.lock"), told)
	if err != nil {
		return "", err
	}
	defer unlock()
	// Another process may have built it while this one waited.
	if found, err := use(path); found || err != nil {
		return path, err
	}
	if err := b.build(ctx, told, p, dir, version, path); err != nil {
		return "", err
	}
	b.prune(p.name, path)
	return path, nil
}

// moduleDir is the folder of one of the nested modules.
func (b *Builder) moduleDir(module string) (string, error) {
	if b.Source == "" {
		_, err := findCheckout(startingPoints()...)
		return "", err
	}
	dir := filepath.Join(b.Source, "lab", "upstream", module)
	if _, err := os.Stat(filepath.Join(dir, "go.mod")); err != nil {
		return "", fmt.Errorf("the checkout %s lacks a module: %w", b.Source, err)
	}
	return dir, nil
}

// key tells one build from another.
func (b *Builder) key(ctx context.Context, p program, dir, version string) (string, error) {
	tool, err := b.goTool(ctx, dir, "env", "GOVERSION", "GOOS", "GOARCH", "GOAMD64", "GOARM64", "GOEXPERIMENT")
	if err != nil {
		return "", err
	}
	h := sha256.New()
	fmt.Fprintf(h, "%s\n%s\n%q\n", tool, p.pkg, p.flags(version))
	files, err := sources(dir)
	if err != nil {
		return "", err
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d\n", filepath.Base(f), len(data))
		h.Write(data)
	}
	return hex.EncodeToString(h.Sum(nil))[:12], nil
}

// build runs go build into a temporary file and renames it.
func (b *Builder) build(ctx context.Context, told *progress, p program, dir, version, path string) error {
	temporary := path + ".new"
	args := append([]string{"build", "-v"}, p.flags(version)...)
	cmd := b.goCommand(ctx, dir, append(args, "-o", temporary, p.pkg)...)
	told.begin(p.expect)
	cmd.Stderr = told
	cmd.Stdout = told
	stop := told.tick()
	err := cmd.Run()
	stop()
	if err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("build was broken off (what is compiled stays in Go's cache): %w", ctx.Err())
		}
		return fmt.Errorf("go build %s in %s: %w\n%s", p.pkg, dir, err, told.tail())
	}
	if err := os.Rename(temporary, path); err != nil {
		return err
	}
	told.done()
	return nil
}

// goCommand is a call of the go command in a nested module. CGO is off: the
// programs run in containers that have no C library.
func (b *Builder) goCommand(ctx context.Context, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, b.Go, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=readonly", "GOWORK=off", "PWD="+dir)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// goTool runs the go command and returns what it prints.
func (b *Builder) goTool(ctx context.Context, dir string, args ...string) (string, error) {
	out, err := b.goCommand(ctx, dir, args...).Output()
	var exit *exec.ExitError
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return "", fmt.Errorf("the go command is needed to build the upstream programs: %w", err)
	case errors.As(err, &exit):
		return "", fmt.Errorf("go %s in %s: %w: %s", strings.Join(args, " "), dir, err, strings.TrimSpace(string(exit.Stderr)))
	case err != nil:
		return "", fmt.Errorf("go %s in %s: %w", strings.Join(args, " "), dir, err)
	}
	return strings.TrimSpace(string(out)), nil
}

// use tells whether the program is there, and notes that it was wanted.
func use(path string) (bool, error) {
	now := time.Now()
	err := os.Chtimes(path, now, now)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// keepUnused is how long a program nobody asks for stays: other checkouts of
// other ages share the cache.
const keepUnused = 14 * 24 * time.Hour

// prune removes older builds of a program that nobody asked for in a while.
// What cannot be removed costs only disk space.
func (b *Builder) prune(name Name, keep string) {
	old, err := filepath.Glob(filepath.Join(b.Cache, string(name)+"-v*"))
	if err != nil {
		return
	}
	for _, path := range old {
		info, err := os.Stat(path)
		if err == nil && path != keep && time.Since(info.ModTime()) > keepUnused {
			_ = os.Remove(path)
		}
	}
}
