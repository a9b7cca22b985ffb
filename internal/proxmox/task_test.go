package proxmox

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

func fingerprint(s *server) string {
	sum := sha256.Sum256(s.Certificate().Raw)
	parts := make([]string, len(sum))
	for i, b := range sum {
		parts[i] = fmt.Sprintf("%02X", b)
	}
	return strings.Join(parts, ":")
}

func TestUPID(t *testing.T) {
	id := UPID(upid("qmclone", "901"))
	if id.Node() != "pv1-1" || id.Type() != "qmclone" || id.ID() != "901" || id.Started().Unix() != 0x6913A000 {
		t.Errorf("got %s %s %s %s", id.Node(), id.Type(), id.ID(), id.Started())
	}
	if UPID("nonsense").Node() != "" || !UPID("").Started().IsZero() {
		t.Error("what is no UPID must have no parts")
	}
}

func TestWaitTask(t *testing.T) {
	id := UPID(upid("qmclone", "901"))
	t.Run("ok", func(t *testing.T) {
		s := newServer(t)
		s.task(string(id), "OK")
		var beats []Progress
		if _, err := s.client(t).WaitTask(context.Background(), id, func(p Progress) { beats = append(beats, p) }); err != nil {
			t.Fatal(err)
		}
		if len(beats) < 2 || beats[0].UPID != id || beats[0].Waits != "task qmclone on pv1-1" {
			t.Errorf("beats: %+v", beats)
		}
	})
	t.Run("warnings are success", func(t *testing.T) {
		s := newServer(t)
		s.task(string(id), "WARNINGS: 1", "create linked clone", "WARN: no efidisk configured!", "TASK WARNINGS: 1")
		result, err := s.client(t).WaitTask(context.Background(), id, nil)
		if err != nil || len(result.Warnings) != 1 || result.Warnings[0] != "WARN: no efidisk configured!" {
			t.Errorf("got %+v and %v", result, err)
		}
	})
	t.Run("failure", func(t *testing.T) {
		s := newServer(t)
		s.task(string(id), "clone failed: can't lock file '/var/lock/pve-manager/pve-storage-local-lvm' - got timeout", "trying to acquire lock...", "TASK ERROR: clone failed")
		_, err := s.client(t).WaitTask(context.Background(), id, nil)
		var task *TaskError
		if !errors.As(err, &task) || !errors.Is(err, ErrTaskFailed) || !errors.Is(err, ErrLockTimeout) || task.UPID != id {
			t.Fatalf("got %v", err)
		}
		if !strings.Contains(err.Error(), "trying to acquire lock...") {
			t.Errorf("the error lacks the log: %v", err)
		}
	})
	t.Run("node away for a while", func(t *testing.T) {
		s := newServer(t)
		s.on("GET", "/nodes/pv1-1/tasks/"+string(id)+"/status", answer{status: 595, reason: "No route to host"}, answer{hangUp: true},
			answer{data: map[string]any{"status": "stopped", "exitstatus": "OK"}})
		said := ""
		if _, err := s.client(t).WaitTask(context.Background(), id, func(p Progress) { said += p.Detail }); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(said, "not reachable") {
			t.Errorf("the wait did not tell that the node is away: %q", said)
		}
	})
	t.Run("token refused", func(t *testing.T) {
		s := newServer(t)
		s.on("GET", "/nodes/pv1-1/tasks/"+string(id)+"/status", answer{status: 401, reason: "No ticket"})
		if _, err := s.client(t).WaitTask(context.Background(), id, nil); !errors.Is(err, ErrUnauthorized) {
			t.Errorf("got %v", err)
		}
		if n := len(s.seen("GET")); n != 2 {
			t.Errorf("asked %d times, want a second look and no more", n)
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		s := newServer(t)
		s.on("GET", "/nodes/pv1-1/tasks/"+string(id)+"/status", answer{data: map[string]any{"status": "running"}})
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		if _, err := s.client(t).WaitTask(ctx, id, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("nothing to wait for", func(t *testing.T) {
		if _, err := newServer(t).client(t).WaitTask(context.Background(), "", nil); err != nil {
			t.Error(err)
		}
	})
}
