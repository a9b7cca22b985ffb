package kubelet_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	utilexec "k8s.io/client-go/util/exec"
)

const base = "https://" + nodeIP + ":10250"

// config reaches port 10250 from outside of the node.
func (n *testNode) config(token string) *rest.Config {
	return &rest.Config{
		Host: base, BearerToken: token, Timeout: 15 * time.Second,
		TLSClientConfig: rest.TLSClientConfig{CAData: n.ca},
	}
}

func execURL(pod, container string, stdin bool, command []string) *url.URL {
	query := url.Values{"output": {"1"}, "error": {"1"}, "command": command}
	if stdin {
		query.Set("input", "1")
	}
	return &url.URL{Scheme: "https", Host: nodeIP + ":10250", Path: "/exec/default/" + pod + "/" + container, RawQuery: query.Encode()}
}

// exec runs a command over SPDY and returns what it wrote and its exit code.
func (n *testNode) exec(pod, container string, stdin io.Reader, command ...string) (string, int) {
	n.t.Helper()
	executor, err := remotecommand.NewSPDYExecutor(n.config(goodToken), http.MethodPost, execURL(pod, container, stdin != nil, command))
	must(n.t, err)
	return n.stream(executor, stdin)
}

func (n *testNode) stream(executor remotecommand.Executor, stdin io.Reader) (string, int) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), 15*time.Second)
	defer cancel()
	var out, errOut bytes.Buffer
	err := executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: stdin, Stdout: &out, Stderr: &errOut})
	var exit utilexec.CodeExitError
	switch {
	case errors.As(err, &exit):
		return out.String() + errOut.String(), exit.Code
	case err != nil:
		n.t.Fatalf("exec: %v (%s%s)", err, &out, &errOut)
	}
	return out.String() + errOut.String(), 0
}

func TestExec(t *testing.T) {
	n := newNode(t)
	n.cniReady()
	n.run("box", corev1.PodSpec{Containers: []corev1.Container{server()}})
	n.await("box", "ready", isReady)
	cases := []struct {
		name    string
		command []string
		stdin   string
		want    string
		code    int
	}{
		{name: "output", command: []string{"hostname"}, want: "box\n"},
		{name: "input", command: []string{"cat"}, stdin: "hello", want: "hello"},
		{name: "exit code and stderr", command: []string{"cat", "/nothing"}, want: "cat: open /nothing: no such file or directory\n", code: 1},
	}
	transports := map[string]func(u *url.URL) (remotecommand.Executor, error){
		"spdy": func(u *url.URL) (remotecommand.Executor, error) {
			return remotecommand.NewSPDYExecutor(n.config(goodToken), http.MethodPost, u)
		},
		"websocket": func(u *url.URL) (remotecommand.Executor, error) {
			return remotecommand.NewWebSocketExecutorForProtocols(n.config(goodToken), http.MethodGet, u.String(), "v4.channel.k8s.io")
		},
	}
	for transport, connect := range transports {
		for _, c := range cases {
			if transport == "websocket" && c.stdin != "" {
				continue // protocol v4 over WebSocket cannot end the input
			}
			t.Run(transport+" "+c.name, func(t *testing.T) {
				m := *n
				m.t = t
				var stdin io.Reader
				if c.stdin != "" {
					stdin = strings.NewReader(c.stdin)
				}
				executor, err := connect(execURL("box", "main", stdin != nil, c.command))
				must(t, err)
				out, code := m.stream(executor, stdin)
				if out != c.want || code != c.code {
					t.Errorf("wrote %q with exit code %d, want %q and %d", out, code, c.want, c.code)
				}
			})
		}
	}
}

func (n *testNode) get(token, path string) (int, string) {
	n.t.Helper()
	client, err := rest.HTTPClientFor(n.config(token))
	must(n.t, err)
	request, err := http.NewRequestWithContext(n.t.Context(), http.MethodGet, base+path, http.NoBody)
	must(n.t, err)
	response, err := client.Do(request)
	must(n.t, err)
	defer response.Body.Close() //nolint:errcheck // read whole
	body, err := io.ReadAll(response.Body)
	must(n.t, err)
	return response.StatusCode, string(body)
}

func TestWhoMayAsk(t *testing.T) {
	n := newNode(t)
	n.cniReady()
	n.run("box", corev1.PodSpec{Containers: []corev1.Container{server()}})
	n.await("box", "ready", isReady)
	cases := []struct {
		name, token, path string
		want              int
		body              string
	}{
		{name: "nobody", path: "/healthz", want: http.StatusUnauthorized},
		{name: "wrong token", token: "wrong", path: "/pods", want: http.StatusUnauthorized},
		{name: "known but not allowed", token: weakToken, path: "/pods", want: http.StatusForbidden, body: "user=weak, verb=get"},
		{name: "health", token: goodToken, path: "/healthz", want: http.StatusOK, body: "ok"},
		{name: "pods", token: goodToken, path: "/pods", want: http.StatusOK, body: `"name":"box"`},
		{name: "log", token: goodToken, path: "/containerLogs/default/box/main", want: http.StatusOK, body: "started HTTP server"},
		{name: "log of nobody", token: goodToken, path: "/containerLogs/default/none/main", want: http.StatusNotFound},
		{name: "log of no container", token: goodToken, path: "/containerLogs/default/box/none", want: http.StatusNotFound},
		{name: "no earlier run", token: goodToken, path: "/containerLogs/default/box/main?previous=true", want: http.StatusBadRequest},
		{name: "bad tail", token: goodToken, path: "/containerLogs/default/box/main?tailLines=x", want: http.StatusUnprocessableEntity},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			m := *n
			m.t = t
			status, body := m.get(c.token, c.path)
			if status != c.want || !strings.Contains(body, c.body) {
				t.Errorf("status %d, want %d; body %q, want part %q", status, c.want, body, c.body)
			}
		})
	}
}

func TestLogs(t *testing.T) {
	n := newNode(t)
	n.cniReady()
	n.run("talker", corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever,
		Containers:    []corev1.Container{shell("main", "echo one; echo two; sleep 1; echo three; echo -n four")},
	})
	n.await("talker", "running", func(s corev1.PodStatus) bool { return s.Phase == corev1.PodRunning })
	const path = "/containerLogs/default/talker/main"
	if _, body := n.get(goodToken, path+"?follow=true"); body != "one\ntwo\nthree\nfour" {
		t.Errorf("followed log is %q", body)
	}
	for query, want := range map[string]string{
		"":                                "one\ntwo\nthree\nfour",
		"?tailLines=2":                    "three\nfour",
		"?tailLines=0":                    "",
		"?limitBytes=5":                   "one\nt",
		"?sinceTime=2100-01-01T00:00:00Z": "",
	} {
		if _, body := n.get(goodToken, path+query); body != want {
			t.Errorf("log%s is %q, want %q", query, body, want)
		}
	}
	if _, body := n.get(goodToken, path+"?timestamps=true&tailLines=1"); !strings.Contains(body, "T") || !strings.HasSuffix(body, " four") {
		t.Errorf("log with timestamps is %q", body)
	}
}
