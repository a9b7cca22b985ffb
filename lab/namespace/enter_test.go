package namespace_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"aether.internal/aether/lab/namespace"
)

// asOutside makes this test binary call Enter instead of running tests.
const asOutside = "AETHER_TEST_ENTER"

func TestMain(m *testing.M) {
	if code, ok := namespace.Init(); ok {
		os.Exit(code)
	}
	switch {
	case namespace.Inside():
		os.Exit(world(os.Args[1:]))
	case os.Getenv(asOutside) != "":
		code, err := namespace.Enter(context.Background(), options(os.Stdout, strings.Fields(os.Getenv(asOutside))...))
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(code)
	}
	os.Exit(m.Run())
}

func options(stdout io.Writer, args ...string) namespace.Options {
	return namespace.Options{Args: args, Stdout: stdout, Stderr: os.Stderr, Grace: time.Second}
}

// world is what runs inside: one small program per test.
func world(args []string) int {
	switch args[0] {
	case "exit":
		return 7
	case "describe":
		describe()
	case "orphans":
		return orphans()
	case "sleep":
		forever()
	case "leave": // an orphan
		if err := again("sleep", nil).Start(); err != nil {
			return 1
		}
	case "polite":
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		fmt.Println("ready")
		<-ctx.Done()
		return 5
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("ready")
		forever()
	case "nested":
		return nested(args[1:])
	case "suicide":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		forever()
	}
	return 0
}

// nested calls Enter in the world, after it has set limits of its namespace to 0.
func nested(limits []string) int {
	for _, limit := range limits {
		if err := os.WriteFile("/proc/sys/user/"+limit, []byte("0"), 0); err != nil {
			fmt.Println(err)
			return 1
		}
	}
	code, err := namespace.Enter(context.Background(), options(os.Stdout, "exit"))
	var refused *namespace.NotAllowedError
	if errors.As(err, &refused) {
		fmt.Println(refused.Advice)
	} else if err != nil {
		fmt.Println(err)
	}
	return code
}

func describe() {
	fmt.Println("uid", os.Getuid())
	fmt.Println("ppid", os.Getppid())
	links, err := net.Interfaces()
	fmt.Println("links", len(links), err)
	procs, err := filepath.Glob("/proc/[0-9]*")
	fmt.Println("processes", len(procs), err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	fmt.Println("loopback", listener != nil, err)
	if dir, err := os.Getwd(); err == nil {
		fmt.Println("dir", dir)
	}
}

// orphans leaves processes behind that have lost their parent, or have another
// session, and lives on.
func orphans() int {
	for _, attr := range []*syscall.SysProcAttr{nil, {Setsid: true}, {Cloneflags: syscall.CLONE_NEWNET}, {Cloneflags: syscall.CLONE_NEWPID}} {
		if err := again("sleep", attr).Start(); err != nil {
			fmt.Println(err)
			return 1
		}
	}
	if err := again("leave", nil).Run(); err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("ready")
	forever()
	return 0
}

// again is this program with another task, and the same standard output.
func again(program string, attr *syscall.SysProcAttr) *exec.Cmd {
	return &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{os.Args[0], program},
		Stdout: os.Stdout, SysProcAttr: attr,
	}
}

func forever() { time.Sleep(time.Hour) }

func enter(t *testing.T, args ...string) (int, string) {
	t.Helper()
	var out bytes.Buffer
	code, err := namespace.Enter(t.Context(), options(&out, args...))
	if err != nil {
		t.Fatal(err)
	}
	return code, out.String()
}

func TestExitCode(t *testing.T) {
	for _, test := range []struct {
		program string
		want    int
	}{{"exit", 7}, {"describe", 0}, {"suicide", 128 + 9}} {
		if got, _ := enter(t, test.program); got != test.want {
			t.Errorf("%s: got %d, want %d", test.program, got, test.want)
		}
	}
}

func TestInsideIsAlone(t *testing.T) {
	_, got := enter(t, "describe")
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("uid 0\nppid 1\nlinks 1 <nil>\nprocesses 2 <nil>\nloopback true <nil>\ndir %s\n", dir)
	if got != want {
		t.Errorf("got:\n%swant:\n%s", got, want)
	}
}

// TestRefusals takes namespaces away from a world, as an administrator may from
// a machine, and enters from there.
func TestRefusals(t *testing.T) {
	for _, test := range []struct {
		name   string
		limits []string
		code   int
		want   string
	}{
		{"nothing refused", nil, 7, ""},
		{"root does without user namespaces", []string{"max_user_namespaces"}, 7, ""},
		{"nobody does without networks", []string{"max_net_namespaces"}, 0, "sysctl user.max_net_namespaces="},
	} {
		t.Run(test.name, func(t *testing.T) {
			code, out := enter(t, append([]string{"nested"}, test.limits...)...)
			if code != test.code || !strings.Contains(out, test.want) {
				t.Errorf("got %d, %q; want %d, %q", code, out, test.code, test.want)
			}
		})
	}
}

// outside starts a process that calls Enter, and returns it with what the world
// prints. The stream ends when the last process of the world has.
func outside(t *testing.T, program string) (*exec.Cmd, io.Reader) {
	t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = read.Close() })
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), asOutside+"="+program)
	cmd.Stdout, cmd.Stderr = write, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = write.Close()
	lines := bufio.NewReader(read)
	if line, err := lines.ReadString('\n'); line != "ready\n" {
		t.Fatalf("world says %q, %v", line, err)
	}
	return cmd, lines
}

// TestEverythingDies: neither orphans nor processes in further namespaces
// outlive a parent that got no chance to clean up.
func TestEverythingDies(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		t.Run(sig.String(), func(t *testing.T) {
			cmd, output := outside(t, "orphans")
			if n := len(descendants(t, cmd.Process.Pid)); n != 7 {
				t.Fatalf("got %d processes below Enter, want init, world and 5 others", n)
			}
			below := descendants(t, cmd.Process.Pid)
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			ended := make(chan struct{})
			go func() { _, _ = io.Copy(io.Discard, output); close(ended) }()
			select {
			case <-ended:
			case <-time.After(10 * time.Second):
				t.Fatalf("processes %v of the world are still there", below)
			}
		})
	}
}

// descendants lists the processes below one, from /proc.
func descendants(t *testing.T, root int) []int {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	children := map[int][]int{}
	for _, name := range stats {
		data, err := os.ReadFile(name)
		if err != nil { // ended meanwhile
			continue
		}
		var pid, ppid int
		var state string
		_, after, _ := strings.Cut(string(data), ") ")
		_, err1 := fmt.Sscan(string(data), &pid)
		_, err2 := fmt.Sscan(after, &state, &ppid)
		if err1 == nil && err2 == nil {
			children[ppid] = append(children[ppid], pid)
		}
	}
	var found []int
	for todo := children[root]; len(todo) > 0; todo = todo[1:] {
		found = append(found, todo[0])
		todo = append(todo, children[todo[0]]...)
	}
	return found
}

func TestCancel(t *testing.T) {
	for _, test := range []struct {
		program string
		want    int
	}{
		{"polite", 5},         // ends by itself within the grace
		{"stubborn", 128 + 9}, // is killed after it
	} {
		t.Run(test.program, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			read, write, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = read.Close(); _ = write.Close() })
			go func() {
				_, _ = bufio.NewReader(read).ReadString('\n')
				cancel()
			}()
			code, err := namespace.Enter(ctx, options(write, test.program))
			if err != nil || code != test.want {
				t.Fatalf("got %d, %v; want %d", code, err, test.want)
			}
		})
	}
}

func TestSetUpFailureIsTold(t *testing.T) {
	o := options(io.Discard, "exit")
	o.Tmpfs = []string{"/no/such/directory"}
	_, err := namespace.Enter(t.Context(), o)
	if !errors.Is(err, syscall.ENOENT) || !strings.Contains(err.Error(), "/no/such/directory") {
		t.Fatalf("got %v, want ENOENT that names the directory", err)
	}
}
