package talos_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"testing"
	"time"

	"aether.internal/aether/internal/talos"
)

func TestNewBootstrapToken(t *testing.T) {
	form := regexp.MustCompile(`^[a-z0-9]{6}\.[a-z0-9]{16}$`)
	seen := map[string]bool{}
	for range 200 {
		token, err := talos.NewBootstrapToken()
		if err != nil {
			t.Fatal(err)
		}
		if !form.MatchString(token.Reveal()) || seen[token.Reveal()] {
			t.Fatalf("token of ID %q has a wrong form or came twice", token.ID())
		}
		seen[token.Reveal()] = true
		again, err := talos.ParseBootstrapToken(token.Reveal())
		if err != nil || again != token {
			t.Fatalf("does not parse back: %v", err)
		}
	}
}

func TestBootstrapTokenHidesItself(t *testing.T) {
	token, err := talos.ParseBootstrapToken("abcdef.0123456789abcdef")
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := json.Marshal(struct{ Token talos.BootstrapToken }{token})
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "token", token)
	for name, shown := range map[string]string{
		"json": string(encoded), "log": log.String(), "%v": fmt.Sprintf("%v", token), "%+v": fmt.Sprintf("%+v", token),
		"%#v": fmt.Sprintf("%#v", token), "%s": fmt.Sprintf("%s", token), "in struct": fmt.Sprintf("%+v", talos.Input{Token: token}),
	} {
		if strings.Contains(shown, "0123456789abcdef") {
			t.Errorf("%s shows the secret: %s", name, shown)
		}
	}
}

func TestParseBootstrapTokenRefuses(t *testing.T) {
	for _, text := range []string{"", "abcdef", "ABCDEF.0123456789abcdef", "abcdef.0123456789abcde", "abcdef.0123456789abcdefg", "abcdef.0123456789abcdef\n"} {
		if _, err := talos.ParseBootstrapToken(text); err == nil {
			t.Errorf("%q was accepted", text)
		} else if len(text) > 7 && strings.Contains(err.Error(), text[7:]) {
			t.Errorf("error quotes the input: %v", err)
		}
	}
}

func TestNewCA(t *testing.T) {
	ca, err := talos.NewCA(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	in := worker(t)
	in.TalosCA = ca.Certificate
	if findings := talos.Check(render(t, in), in); len(findings) > 0 {
		t.Errorf("a new CA does not pass: %v", findings)
	}
	if shown := fmt.Sprintf("%v %#v %+v", ca, ca, ca); strings.Contains(shown, "PRIVATE") {
		t.Error("printing a CA shows its key")
	}
}

func TestSplitLabels(t *testing.T) {
	node, core, err := talos.SplitLabels(map[string]string{
		"example.test/pool": "a", "pool": "b", "node.kubernetes.io/instance-type": "c", "topology.kubernetes.io/zone": "d",
		"node-role.kubernetes.io/worker": "", "x.node-restriction.kubernetes.io/y": "e", "node.cluster.x-k8s.io/pool": "f",
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(node) != 4 || len(core) != 3 || core["node-role.kubernetes.io/worker"] != "" || node["pool"] != "b" {
		t.Errorf("node %v, core %v", node, core)
	}
	if _, _, err := talos.SplitLabels(map[string]string{"k8s.io/x": ""}); err == nil {
		t.Error("k8s.io/x was accepted")
	}
}
