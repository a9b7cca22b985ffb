package task

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"aether.internal/aether/lab/latency"
)

func registry(t *testing.T) *Registry {
	t.Helper()
	clock, err := latency.NewClock(1000)
	if err != nil {
		t.Fatal(err)
	}
	r := NewRegistry("pv1-1", clock)
	r.Boot(t.Context())
	return r
}

func TestEnds(t *testing.T) {
	for name, c := range map[string]struct {
		fail string
		work func(*Task) error
		exit string
		log  []string
	}{
		"ok":       {"", func(*Task) error { return nil }, "OK", []string{"TASK OK"}},
		"error":    {"", func(*Task) error { return errors.New("a\nb\n") }, "a b", []string{"TASK ERROR: a b"}},
		"warnings": {"", func(k *Task) error { k.Warn("odd"); k.Log("x\ny"); k.Warn("odd"); return nil }, "WARNINGS: 2", []string{"WARN: odd", "x", "y", "WARN: odd", "TASK WARNINGS: 2"}},
		"killed":   {"", func(*Task) error { return ErrKilled }, "unexpected status", nil},
		"injected": {"disk full", func(k *Task) error { return k.Step(latency.VMConfig, 1) }, "disk full", []string{"TASK ERROR: disk full"}},
		"injected kill": {"unexpected status", func(k *Task) error {
			err := k.Step(latency.VMConfig, 1)
			if !errors.Is(err, ErrKilled) {
				t.Error(err)
			}
			return err
		}, "unexpected status", nil},
		"injected warnings": {"WARNINGS: 1", func(k *Task) error { return k.Step(latency.VMConfig, 1) }, "WARNINGS: 1", []string{"WARN: injected", "TASK WARNINGS: 1"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := registry(t)
			k := r.Start(Spec{Type: "qmstart", ID: "100", User: "a@pve!t", Fail: c.fail}, c.work)
			<-k.Done()
			if k.Exit() != c.exit {
				t.Errorf("exit %q, want %q", k.Exit(), c.exit)
			}
			var got []string
			lines, _ := k.Lines(0, 0)
			for _, line := range lines {
				got = append(got, line.T)
			}
			if c.log == nil {
				c.log = []string{"no content"}
			}
			if diff := cmp.Diff(c.log, got); diff != "" {
				t.Error(diff)
			}
			s := k.Status()
			if s["status"] != "stopped" || s["exitstatus"] != c.exit || s["user"] != "a@pve" || s["tokenid"] != "t" {
				t.Errorf("status %v", s)
			}
		})
	}
}

func TestStopAndKill(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(*Registry, *Task)
		exit string
	}{
		"stop": {func(r *Registry, k *Task) { r.Stop(k) }, "interrupted by signal"},
		"kill": {func(r *Registry, _ *Task) { r.KillAll() }, "unexpected status"},
	} {
		t.Run(name, func(t *testing.T) {
			r := registry(t)
			k := r.Start(Spec{Type: "qmclone", User: "a@pve"}, func(k *Task) error { return k.Step(latency.CloneLinked, 10000) })
			if s := k.Status(); s["status"] != "running" || s["exitstatus"] != nil || k.Row()["status"] != "RUNNING" {
				t.Errorf("running: %v", s)
			}
			c.end(r, k)
			<-k.Done()
			if k.Exit() != c.exit {
				t.Errorf("exit %q", k.Exit())
			}
		})
	}
}

func TestUPID(t *testing.T) {
	u := UPID{Node: "pv1-1", PID: 0x4d2, PStart: 0x10, StartTime: 0x65000000, Type: "imgcopy", User: "a@pve!t"}
	text := u.String()
	if text != "UPID:pv1-1:000004D2:00000010:65000000:imgcopy::a@pve!t:" {
		t.Error(text)
	}
	got, ok := Parse(text)
	if diff := cmp.Diff(u, got); !ok || diff != "" {
		t.Error(diff)
	}
	for _, bad := range []string{"", "UPID", strings.TrimSuffix(text, ":"), "x" + text, strings.Replace(text, "4D2", "XYZ", 1), text + "x"} {
		if _, ok := Parse(bad); ok {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestRegistry(t *testing.T) {
	r := registry(t)
	first := r.Start(Spec{Type: "a", User: "u@pve"}, func(*Task) error { return nil })
	second := r.Start(Spec{Type: "b", User: "u@pve"}, func(*Task) error { return nil })
	if list := r.List(); len(list) != 2 || list[0] != second || list[1] != first {
		t.Error("not newest first")
	}
	if got, ok := r.Find(first.UPID().String()); !ok || got != first || first.UPID() == second.UPID() {
		t.Error("not found by its UPID")
	}
	<-first.Done()
	lines, total := first.Lines(0, 1)
	if total != 1 || len(lines) != 1 || lines[0].N != 1 {
		t.Errorf("lines %v of %d", lines, total)
	}
	if lines, _ := first.Lines(9, 1); len(lines) != 0 {
		t.Errorf("past the end: %v", lines)
	}
}
