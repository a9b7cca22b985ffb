package proxmox_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"aether.internal/aether/lab/faults"
)

func TestCallFaults(t *testing.T) {
	l := start(t, withMachine)
	place := "pve/PUT/nodes/pv1-1/qemu/1000/config"
	set := func(tag string) (answer, error) {
		req, err := http.NewRequestWithContext(t.Context(), "PUT", l.cluster.Endpoint("pv1-1")+vm1000+"/config?tags="+tag, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", l.secret)
		return l.send(req)
	}
	tags := func() string { v, _ := l.find(1000); return v.Config["tags"] }

	l.inject(faults.Fault{Kind: faults.HTTPStatus, Place: place, Count: 1, Status: 596, Message: "Connection timed out"})
	if a, err := set("a"); err != nil || a.status != "596 Connection timed out" || tags() != "" {
		t.Errorf("http-status: %v %v %q", a.status, err, tags())
	}
	l.inject(faults.Fault{Kind: faults.LostAnswer, Place: "pve/PUT/nodes/*/qemu/*/config", Count: 1})
	if a, err := set("b"); err == nil || tags() != "b" {
		t.Errorf("lost-answer: %v %q", a.status, tags())
	}
	l.inject(faults.Fault{Kind: faults.Delay, Place: place, Count: 1, Delay: 60 * time.Millisecond})
	begin := time.Now()
	if a, err := set("c"); err != nil || a.status != "200 OK" || time.Since(begin) < 60*time.Millisecond || tags() != "c" {
		t.Errorf("delay: %v %v after %s", a.status, err, time.Since(begin))
	}
	id := l.inject(faults.Fault{Kind: faults.Hold, Place: place})
	done := make(chan answer, 1)
	go func() {
		a, err := set("d")
		if err != nil {
			a.status = err.Error()
		}
		done <- a
	}()
	l.eventually("the effect is there", func() bool { return tags() == "d" })
	select {
	case a := <-done:
		t.Errorf("hold: answered %s", a.status)
	case <-time.After(50 * time.Millisecond):
	}
	l.faults.Clear(id)
	if a := <-done; a.status != "200 OK" {
		t.Errorf("hold, cleared: %s", a.status)
	}
	// A refused call is not an effect whose answer could be lost.
	l.inject(faults.Fault{Kind: faults.LostAnswer, Place: "pve/PUT/nodes/*/qemu/*/config", Count: 1})
	if a := l.do("PUT", vm1000+"/config", map[string]string{"onboot": "x"}); a.status != "400 Parameter verification failed." {
		t.Error(a.status)
	}
	if hits := l.faults.List()[len(l.faults.List())-1].Hits; hits != 0 {
		t.Errorf("the refused call was counted: %d", hits)
	}
}

// TestSlowProxy has a call time out between two hosts while it takes effect.
func TestSlowProxy(t *testing.T) {
	l := start(t, withMachine)
	l.inject(faults.Fault{Kind: faults.Delay, Place: "pve/PUT/nodes/pv1-1/qemu/1000/config", Count: 1, Delay: 400 * time.Millisecond})
	if a := l.as(l.secret, "pv1-2", "PUT", vm1000+"/config", map[string]string{"tags": "late"}); a.status != "596 Connection timed out" {
		t.Error(a.status)
	}
	l.eventually("it takes effect", func() bool { v, _ := l.find(1000); return v.Config["tags"] == "late" })
}

func TestFailedTasks(t *testing.T) {
	l := start(t, withMachine)
	for _, c := range []struct{ verb, path, message, exit string }{
		{"POST", "/status/start", "start failed: QEMU exited with code 1", "start failed: QEMU exited with code 1"},
		{"POST", "/status/start", "", "failed by the lab"},
		{"POST", "/status/start", "WARNINGS: 1", "WARNINGS: 1"},
		{"POST", "/status/stop", "WARNINGS: 2", "WARNINGS: 2"},
		{"POST", "/config", "unexpected status", "unexpected status"},
		{"PUT", "/resize", "volume does not exist", "volume does not exist"},
		{"DELETE", "", "WARNINGS: 1", "WARNINGS: 1"},
	} {
		l.inject(faults.Fault{Kind: faults.FailedTask, Place: "pve/" + c.verb + vm1000 + c.path, Count: 1, Message: c.message})
		form := map[string]string{}
		switch c.path {
		case "/config":
			form["tags"] = "x"
		case "/resize":
			form = map[string]string{"disk": "scsi0", "size": "9G"}
		}
		upid := l.upid(l.do(c.verb, vm1000+c.path, form))
		if exit := l.wait(upid); exit != c.exit {
			t.Errorf("%s %q: %q", c.path, c.message, exit)
		}
		if log := l.log(upid); strings.HasPrefix(c.message, "WARNINGS") && !strings.HasSuffix(log, "TASK "+c.exit) {
			t.Errorf("log:\n%s", log)
		}
	}
	if _, there := l.find(1000); there {
		t.Error("a destroy with warnings leaves the VM")
	}
}
