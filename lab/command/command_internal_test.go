package command

import (
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestLockIsForOne(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state")
	unlock, err := lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock(dir); err == nil || !strings.Contains(err.Error(), "a lab is running there already") {
		t.Errorf("a second lock gives %v", err)
	}
	unlock()
	if err := waitUnlocked(t.Context(), dir); err != nil {
		t.Errorf("after unlocking: %v", err)
	}
}

func TestFollowCopiesToTheEnd(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	ctx, cancel := context.WithCancel(t.Context())
	followed := make(chan error, 1)
	go func() { followed <- follow(ctx, &out, path) }()
	for _, line := range []string{"one\n", "two\n"} {
		if _, err := f.WriteString(line); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	if err := <-followed; err != nil {
		t.Fatal(err)
	}
	if out.String() != "one\ntwo\n" {
		t.Errorf("copied %q", out.String())
	}
}

func TestCensusFindsWhatIsLeft(t *testing.T) {
	before, err := takeCensus()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.CommandContext(t.Context(), "sleep", "60")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	during, err := takeCensus()
	if err != nil {
		t.Fatal(err)
	}
	left := during.since(before)
	if left == nil || !strings.Contains(left.Error(), "sleep") || !strings.Contains(left.Error(), "listener") {
		t.Errorf("what is left is %v", left)
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait() // it was killed
	after, err := takeCensus()
	if err != nil {
		t.Fatal(err)
	}
	if err := after.since(before); err != nil {
		t.Errorf("after the end: %v", err)
	}
}

func TestCommandLine(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"no lab":           {[]string{"status"}, "no lab is running here"},
		"down without lab": {[]string{"down"}, "no lab is running with state folder"},
		"world outside":    {[]string{"world"}, "runs inside the lab's namespaces only"},
		"switch":           {[]string{"host", "pv1-1", "sideways"}, `found "sideways": allowed are off and on`},
		"nothing to run":   {[]string{"exec"}, "requires at least 1 arg"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			var out bytes.Buffer
			root := newRoot()
			root.SetOut(&out)
			root.SetArgs(append([]string{"--state", state}, tc.args...))
			if err := root.ExecuteContext(ctx); err != nil {
				out.WriteString(err.Error())
			}
			if !strings.Contains(out.String(), tc.want) {
				t.Errorf("output is %q, want %q in it", out.String(), tc.want)
			}
		})
	}
}
