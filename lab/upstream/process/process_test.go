package process

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func shell(t *testing.T, script string) Spec {
	t.Helper()
	return Spec{
		Name: "child", Program: "/bin/sh", Args: []string{"-c", script},
		LogFile: filepath.Join(t.TempDir(), "logs", "child.log"),
	}
}

func start(t *testing.T, s Spec) *Process {
	t.Helper()
	p, err := Start(s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Kill() })
	return p
}

func TestEnd(t *testing.T) {
	for _, c := range []struct {
		name, script, want string
		end                func(*Process) error
	}{
		{"stop", "trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.02; done", "bye", func(p *Process) error { return p.Stop(5 * time.Second) }},
		{"stop of a deaf one", "trap '' TERM; echo up; while :; do sleep 0.02; done", "signal: killed", func(p *Process) error { return p.Stop(50 * time.Millisecond) }},
		{"kill", "echo up; while :; do sleep 0.02; done", "signal: killed", (*Process).Kill},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := shell(t, c.script)
			p := start(t, s)
			up := func(context.Context) error {
				if data, _ := os.ReadFile(s.LogFile); !strings.Contains(string(data), "up") {
					return errors.New("not up")
				}
				return nil
			}
			if err := p.WaitReady(t.Context(), up); err != nil {
				t.Fatal(err)
			}
			if !p.Running() || p.Err() != nil {
				t.Errorf("running %v, error %v before the end", p.Running(), p.Err())
			}
			if size, err := p.ResidentBytes(); err != nil || size <= 0 {
				t.Errorf("memory %d, error %v", size, err)
			}
			if err := c.end(p); err != nil {
				t.Fatal(err)
			}
			if p.Running() || p.Err() == nil || !strings.Contains(p.Err().Error(), c.want) {
				t.Errorf("running %v, error %v; want one with %q", p.Running(), p.Err(), c.want)
			}
			if err := c.end(p); err != nil {
				t.Errorf("ending it twice: %v", err)
			}
		})
	}
}

func TestWaitReadyNoticesTheEnd(t *testing.T) {
	s := shell(t, "echo old")
	old := start(t, s)
	<-old.Done()
	s.Args = []string{"-c", "echo the disk is full; exit 7"}
	p := start(t, s)
	err := p.WaitReady(t.Context(), func(context.Context) error { return errors.New("no") })
	if err == nil || !strings.Contains(err.Error(), "exit status 7") || !strings.Contains(err.Error(), "the disk is full") {
		t.Errorf("error %v lacks exit status or last lines", err)
	}
	if strings.Contains(err.Error(), "old") {
		t.Errorf("error %v shows an earlier process's lines", err)
	}
}

func TestWaitReadyEndsWithItsContext(t *testing.T) {
	p := start(t, shell(t, "while :; do sleep 0.02; done"))
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	refused := errors.New("connection refused")
	if err := p.WaitReady(ctx, func(context.Context) error { return refused }); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, refused) {
		t.Errorf("error %v, want the deadline and the last answer", err)
	}
}

// elsewhere counts what is started in it.
type elsewhere struct{ started int }

func (e *elsewhere) Start(cmd *exec.Cmd) error { e.started++; return cmd.Start() }
func (*elsewhere) DialContext(context.Context, string, string) (net.Conn, error) {
	return nil, errors.ErrUnsupported
}

func TestStartInANamespace(t *testing.T) {
	n := &elsewhere{}
	s := shell(t, "echo $0 $NAME $HOME_OF_CALLER")
	t.Setenv("HOME_OF_CALLER", "secret")
	s.Net, s.Env, s.Args = n, []string{"NAME=given"}, append(s.Args, "called")
	p := start(t, s)
	<-p.Done()
	data, err := os.ReadFile(s.LogFile)
	if err != nil {
		t.Fatal(err)
	}
	if n.started != 1 || strings.TrimSpace(string(data)) != "called given" {
		t.Errorf("started %d times, wrote %q; want once, with its own environment only", n.started, data)
	}
	if _, err := Start(Spec{Name: "none", Program: "/nonexistent", LogFile: s.LogFile}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing program: %v", err)
	}
}
