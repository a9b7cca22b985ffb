package control_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"aether.internal/aether/lab/faults"
	"aether.internal/aether/lab/world/control"
)

var errNoSuch = errors.New("no such component")

// fakeWorld is a lab in which nothing runs.
type fakeWorld struct {
	faults faults.Set
	calls  chan string
}

func (f *fakeWorld) Status() control.Status {
	return control.Status{Ready: true, Speed: 50, Components: []control.Component{{Name: "temporal", State: control.Running}}}
}
func (f *fakeWorld) Faults() *faults.Set { return &f.faults }
func (f *fakeWorld) Secrets(context.Context) ([]control.Secret, error) {
	return []control.Secret{{Name: "a", Value: "b"}}, nil
}
func (f *fakeWorld) Kill(name string) error                    { return f.note("kill", name) }
func (f *fakeWorld) Restart(_ context.Context, n string) error { return f.note("restart", n) }
func (f *fakeWorld) SetHost(name string, on bool) error {
	return f.note(map[bool]string{true: "on", false: "off"}[on], name)
}
func (f *fakeWorld) Shutdown() { f.calls <- "shutdown" }
func (f *fakeWorld) Floor(r control.FloorRequest) (control.Floor, error) {
	return control.Floor{Seconds: float64(r.Workers)}, nil
}

func (f *fakeWorld) note(verb, name string) error {
	if name == "nobody" {
		return errNoSuch
	}
	f.calls <- verb + " " + name
	return nil
}

// Exec answers with its arguments, and waits for the client's end when told.
func (f *fakeWorld) Exec(ctx context.Context, c control.Command, stdio [3]*os.File) (int, error) {
	if c.Args[0] == "wait" {
		f.calls <- "started"
		<-ctx.Done()
		f.calls <- "cancelled"
		return 0, ctx.Err()
	}
	_, err := stdio[1].WriteString(strings.Join(c.Args, " "))
	return len(c.Args), err
}

func serve(t *testing.T) (*fakeWorld, *control.Client) {
	t.Helper()
	dir, err := os.MkdirTemp("", "ctl")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	w := &fakeWorld{calls: make(chan string, 10)}
	server, err := control.Listen(dir, w, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return w, control.NewClient(dir)
}

func TestCalls(t *testing.T) {
	t.Parallel()
	w, lab := serve(t)
	for want, call := range map[string]func() error{
		"kill worker": func() error { return lab.Kill(t.Context(), "worker") },
		"restart a/b": func() error { return lab.Restart(t.Context(), "a/b") },
		"off pv1-1":   func() error { return lab.SetHost(t.Context(), "pv1-1", false) },
		"on pv1-1":    func() error { return lab.SetHost(t.Context(), "pv1-1", true) },
		"shutdown":    func() error { return lab.Stop(t.Context()) },
	} {
		if err := call(); err != nil {
			t.Fatalf("%s: %v", want, err)
		}
		if got := <-w.calls; got != want {
			t.Errorf("the world got %q, want %q", got, want)
		}
	}
	if err := lab.Kill(t.Context(), "nobody"); err == nil || err.Error() != errNoSuch.Error() {
		t.Errorf("error is %v, want the world's", err)
	}
	status, err := lab.WaitReady(t.Context())
	if _, ok := status.Component("temporal"); !ok || err != nil {
		t.Errorf("status is %+v, %v", status, err)
	}
	floor, err := lab.Floor(t.Context(), control.FloorRequest{Workers: 3, Hosts: 1})
	if err != nil || floor.Seconds != 3 {
		t.Errorf("floor is %+v, %v", floor, err)
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	_, lab := serve(t)
	id, err := lab.Inject(t.Context(), faults.Fault{Kind: faults.Away, Place: "a/b", Count: 2})
	if err != nil {
		t.Fatal(err)
	}
	list, err := lab.Faults(t.Context())
	if err != nil || len(list) != 1 || list[0].ID != id || list[0].Count != 2 {
		t.Errorf("faults are %+v, %v", list, err)
	}
	if n, err := lab.Clear(t.Context(), id); n != 1 || err != nil {
		t.Errorf("cleared %d, %v", n, err)
	}
	if _, err := lab.Clear(t.Context(), id); err == nil || !strings.Contains(err.Error(), "is not in force") {
		t.Errorf("clearing twice gives %v", err)
	}
	if _, err := lab.Inject(t.Context(), faults.Fault{Kind: "no-such-kind", Place: "a"}); err == nil || !strings.Contains(err.Error(), "no-such-kind") {
		t.Errorf("an unknown kind gives %v", err)
	}
}

func TestExec(t *testing.T) {
	t.Parallel()
	w, lab := serve(t)
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	stdio := [3]*os.File{os.Stdin, writer, os.Stderr}
	code, err := lab.Exec(t.Context(), control.Command{Args: []string{"a", "b"}}, stdio)
	if code != 2 || err != nil {
		t.Errorf("exit code is %d, %v; want 2", code, err)
	}
	said := make([]byte, 10)
	if n, err := reader.Read(said); err != nil || string(said[:n]) != "a b" {
		t.Errorf("output is %q, %v", said[:n], err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-w.calls // it has started
		cancel()
	}()
	if _, err := lab.Exec(ctx, control.Command{Args: []string{"wait"}}, stdio); err == nil {
		t.Error("a command that was cut off ends well")
	}
	if got := <-w.calls; got != "cancelled" {
		t.Errorf("the command was %s, want cancelled", got)
	}
}

func TestNoLab(t *testing.T) {
	t.Parallel()
	lab := control.NewClient(t.TempDir())
	if _, err := lab.Status(t.Context()); !errors.Is(err, control.ErrNoLab) {
		t.Errorf("status without a lab: %v", err)
	}
	if _, err := lab.Exec(t.Context(), control.Command{Args: []string{"a"}}, [3]*os.File{os.Stdin, os.Stdout, os.Stderr}); !errors.Is(err, control.ErrNoLab) {
		t.Errorf("exec without a lab: %v", err)
	}
}

func TestPathTooLong(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), strings.Repeat("x", 100))
	if _, err := control.Listen(dir, &fakeWorld{}, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "choose a shorter --state") {
		t.Errorf("error is %v", err)
	}
}
