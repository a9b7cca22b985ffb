package container_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"aether.internal/aether/lab/container"
	"aether.internal/aether/lab/namespace"
	"aether.internal/aether/lab/network"
)

func TestMain(m *testing.M) {
	switch {
	case len(os.Args) == 2 && os.Args[1] == container.Command:
		os.Exit(container.Main(os.Args[2:]))
	case programs()[path.Base(os.Args[0])] != nil:
		os.Exit(programs()[path.Base(os.Args[0])](os.Args[1:]))
	}
	os.Exit(namespace.RunTests(m))
}

// programs are what the test binary does under another name.
func programs() map[string]func([]string) int {
	return map[string]func([]string) int{
		"describe": describe,
		"code":     func(args []string) int { return len(args) },
		"cat":      cat,
		"write":    write,
		"server":   server,
		"deaf":     func([]string) int { signal.Ignore(syscall.SIGTERM); fmt.Println("ready"); forever(); return 0 },
		"sleep":    func([]string) int { forever(); return 0 },
	}
}

func forever() { time.Sleep(time.Hour) }

func describe([]string) int {
	name, _ := os.Hostname()
	dir, _ := os.Getwd()
	procs, _ := filepath.Glob("/proc/[0-9]*")
	root, _ := filepath.Glob("/*")
	fmt.Println("pid", os.Getpid(), "of", len(procs))
	fmt.Println("hostname", name, "in", dir)
	fmt.Println("env", os.Environ())
	fmt.Println("root", root)
	return 0
}

func cat(args []string) int {
	for _, name := range args {
		data, err := os.ReadFile(name)
		if err != nil {
			fmt.Println(err)
			return 1
		}
		_, _ = os.Stdout.Write(data)
	}
	if len(args) == 0 {
		_, _ = io.Copy(os.Stdout, os.Stdin)
	}
	return 0
}

func write(args []string) int {
	if err := os.WriteFile(args[0], []byte(args[1]), 0o600); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// server ends on SIGTERM.
func server([]string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if _, err := net.Listen("tcp", "127.0.0.1:8080"); err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("ready")
	<-ctx.Done()
	return 3
}

type world struct {
	engine *container.Engine
	net    *network.Namespace
	self   string
}

func newWorld(t *testing.T) world {
	t.Helper()
	self, err := os.Executable()
	check(t, err)
	ns, err := network.NewNamespace("pod")
	check(t, err)
	t.Cleanup(func() { check(t, ns.Close()) })
	return world{container.New(self, slog.New(slog.DiscardHandler)), ns, self}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (w world) spec(t *testing.T, args ...string) container.Spec {
	return container.Spec{
		ID: t.Name(), Program: w.self, Args: args, Net: w.net,
		LogFile: filepath.Join(t.TempDir(), "log"), Hostname: "box",
	}
}

// finish runs a container to its end and returns its exit code and its log.
func (w world) finish(t *testing.T, s container.Spec) (int, string) {
	t.Helper()
	c, err := w.engine.Run(t.Context(), s)
	check(t, err)
	code, err := c.Wait()
	check(t, err)
	log, err := os.ReadFile(s.LogFile)
	check(t, err)
	return code, string(log)
}

// start runs a container until it says that it is ready.
func (w world) start(t *testing.T, ctx context.Context, s container.Spec) *container.Container {
	t.Helper()
	c, err := w.engine.Run(ctx, s)
	check(t, err)
	t.Cleanup(func() {
		_ = c.Kill(syscall.SIGKILL)
		<-c.Done()
	})
	for range 500 {
		if log, err := os.ReadFile(s.LogFile); err == nil && strings.Contains(string(log), "ready") {
			return c
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("the container does not get ready")
	return nil
}

func TestRoot(t *testing.T) {
	w := newWorld(t)
	s := w.spec(t, "describe")
	s.Env = []string{"A=b"}
	s.Dir = "/srv/data"
	code, log := w.finish(t, s)
	want := "pid 1 of 1\nhostname box in /srv/data\n" +
		"env [A=b PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin]\n" +
		"root [/bin /dev /etc /proc /root /run /srv /sys /tmp /usr /var]\n"
	if code != 0 || log != want {
		t.Errorf("exit code %d, got:\n%swant:\n%s", code, log, want)
	}
}

func TestExitCodes(t *testing.T) {
	w := newWorld(t)
	if code, _ := w.finish(t, w.spec(t, "code", "1", "2", "3")); code != 3 {
		t.Errorf("got %d, want 3", code)
	}
	s := w.spec(t, "/bin/server")
	c := w.start(t, t.Context(), s)
	check(t, c.Kill(syscall.SIGTERM))
	if code, err := c.Wait(); code != 3 || err != nil {
		t.Errorf("after SIGTERM: got %d, %v; want 3", code, err)
	}
	if err := c.Kill(syscall.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("signal after the end: got %v, want os.ErrProcessDone", err)
	}
}

func TestEtc(t *testing.T) {
	w := newWorld(t)
	s := w.spec(t, "cat", "/etc/hosts", "/etc/resolv.conf", "/etc/hostname")
	s.Hosts = map[string]string{"harbor.lab": "192.168.0.5", "api": "10.1.1.10"}
	s.ResolvConf = "nameserver 192.168.0.1\n"
	_, log := w.finish(t, s)
	want := "127.0.0.1\tlocalhost\n::1\tlocalhost\n10.1.1.10\tapi\n192.168.0.5\tharbor.lab\nnameserver 192.168.0.1\nbox\n"
	if log != want {
		t.Errorf("got:\n%swant:\n%s", log, want)
	}
}

func TestMounts(t *testing.T) {
	w := newWorld(t)
	host := t.TempDir()
	outer, inner := filepath.Join(host, "outer"), filepath.Join(host, "inner")
	check(t, os.Mkdir(outer, 0o700))
	check(t, os.WriteFile(filepath.Join(outer, "a"), []byte("outer a"), 0o600))
	check(t, os.WriteFile(inner, []byte("inner b"), 0o600))
	// A container must not get at the host by what a volume's symlink says.
	check(t, os.Symlink("/etc", filepath.Join(outer, "link")))
	mounts := func(readOnly bool) []container.Mount {
		return []container.Mount{ // the inner one first, on purpose
			{Host: inner, Container: "/data/sub/b"},
			{Host: outer, Container: "/data", ReadOnly: readOnly},
			{Host: inner, Container: "/data/link/planted"},
		}
	}
	for _, test := range []struct {
		name     string
		args     []string
		readOnly bool
		code     int
		want     string
	}{
		{"read", []string{"cat", "/data/a", "/data/sub/b", "/etc/planted"}, false, 0, "outer ainner binner b"},
		{"write", []string{"write", "/data/new", "x"}, false, 0, ""},
		{"write to read-only", []string{"write", "/data/a", "x"}, true, 1, "read-only file system"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := w.spec(t, test.args...)
			s.Mounts = mounts(test.readOnly)
			if test.readOnly { // the targets inside exist by now
				s.Mounts = s.Mounts[1:2]
			}
			code, log := w.finish(t, s)
			if code != test.code || !strings.Contains(log, test.want) {
				t.Errorf("got %d, %q; want %d, %q", code, log, test.code, test.want)
			}
		})
	}
	if _, err := os.Stat("/etc/planted"); err == nil {
		t.Error("a volume's symlink led to the host")
	}
	if got, err := os.ReadFile(filepath.Join(outer, "new")); string(got) != "x" {
		t.Errorf("written through the mount: got %q, %v", got, err)
	}
}

func TestExec(t *testing.T) {
	w := newWorld(t)
	s := w.spec(t, "server")
	s.Env = []string{"A=b"}
	c := w.start(t, t.Context(), s)
	for _, test := range []struct {
		name  string
		argv  []string
		stdin string
		code  int
		want  string
	}{
		{"sees the container's processes", []string{"/usr/local/bin/server"}, "", 1, "address already in use"},
		{"standard input", []string{"cat"}, "typed", 0, "typed"},
		{"files of the container", []string{"cat", "/etc/hostname"}, "", 0, "box\n"},
		{"exit code", []string{"cat", "/nothing"}, "", 1, "no such file"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var out bytes.Buffer
			code, err := c.Exec(t.Context(), test.argv, strings.NewReader(test.stdin), &out, &out)
			if err != nil || code != test.code || !strings.Contains(out.String(), test.want) {
				t.Errorf("got %d, %v, %q; want %d, %q", code, err, out.String(), test.code, test.want)
			}
		})
	}
	if _, err := c.Exec(t.Context(), []string{"bash"}, nil, nil, nil); !errors.Is(err, container.ErrNoProgram) {
		t.Errorf("unknown program: got %v, want ErrNoProgram", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if code, err := c.Exec(ctx, []string{"sleep"}, nil, nil, nil); code != 128+9 || err != nil {
		t.Errorf("cancelled: got %d, %v; want 137", code, err)
	}
	check(t, c.Kill(syscall.SIGKILL))
	<-c.Done()
	if _, err := c.Exec(t.Context(), []string{"cat"}, nil, nil, nil); !errors.Is(err, container.ErrEnded) {
		t.Errorf("after the end: got %v, want ErrEnded", err)
	}
}

// TestDynamicProgram: what is missing is the loader, not the program.
func TestDynamicProgram(t *testing.T) {
	w := newWorld(t)
	s := w.spec(t, "ls")
	s.Program = "/usr/bin/env" // dynamic on every distribution that has it there
	if _, err := w.engine.Run(t.Context(), s); !errors.Is(err, container.ErrNotStatic) {
		t.Errorf("got %v, want ErrNotStatic", err)
	}
}

// TestContextKills: also what ignores signals, and what was executed in it.
func TestContextKills(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := w.start(t, ctx, w.spec(t, "deaf"))
	executed := make(chan int, 1)
	go func() {
		code, _ := c.Exec(context.Background(), []string{"/bin/sleep"}, nil, nil, nil)
		executed <- code
	}()
	for range 200 {
		if pids, err := w.net.Processes(); err == nil && len(pids) == 2 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	cancel()
	if code, err := c.Wait(); code != 128+9 || err != nil {
		t.Errorf("got %d, %v; want 137", code, err)
	}
	if code := <-executed; code != 128+9 {
		t.Errorf("executed command: got %d, want 137", code)
	}
	if pids, err := w.net.Processes(); err != nil || len(pids) != 0 {
		t.Errorf("left in the network: %v, %v", pids, err)
	}
}

func TestRunRefuses(t *testing.T) {
	w := newWorld(t)
	for _, test := range []struct {
		name   string
		change func(*container.Spec)
		want   string
	}{
		{"no network", func(s *container.Spec) { s.Net = nil }, "net:"},
		{"relative program", func(s *container.Spec) { s.Program = "kubelet" }, "program:"},
		{"no arguments", func(s *container.Spec) { s.Args = nil }, "args:"},
		{"relative mount", func(s *container.Spec) { s.Mounts = []container.Mount{{Host: "a", Container: "/a"}} }, "mounts:"},
		{"missing volume", func(s *container.Spec) { s.Mounts = []container.Mount{{Host: "/nothing", Container: "/a"}} }, "open /nothing: no such file"},
		{"missing program", func(s *container.Spec) { s.Program = "/nothing" }, "open /nothing: no such file"},
		{"not a program", func(s *container.Spec) { s.Program = "/etc/passwd" }, "execute /usr/local/bin/cat"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := w.spec(t, "cat")
			test.change(&s)
			_, err := w.engine.Run(t.Context(), s)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want it to contain %q", err, test.want)
			}
		})
	}
}
