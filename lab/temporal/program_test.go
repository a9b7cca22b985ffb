package temporal_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"aether.internal/aether/lab/upstream"
)

// The program says what is wrong with its command line and ends with status 2.
func TestProgramRefuses(t *testing.T) {
	paths, err := upstream.Ensure(t.Context(), os.Stderr, upstream.Temporal)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, want string
		args       []string
	}{
		{"no file", "--db is empty", nil},
		{"argument", `argument "start" is not expected`, []string{"start"}},
		{"address", `--ip "localhost" is not an address`, []string{"--db=x", "--ip=localhost"}},
		{"attribute", "is not name=Type; for example AetherTenant=Keyword", []string{"--db=x", "--search-attribute=AetherTenant"}},
		{"attribute type", `type "Word" is unknown; allowed: Text, Keyword`, []string{"--db=x", "--search-attribute=AetherTenant=Word"}},
		{"log level", `--log-level "loud" is unknown; allowed: debug, info`, []string{"--db=x", "--log-level=loud"}},
		{"namespace", "--namespace is empty", []string{"--db=x", "--namespace="}},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, err := exec.CommandContext(t.Context(), paths[upstream.Temporal], c.args...).CombinedOutput()
			if err == nil || !strings.Contains(err.Error(), "exit status 2") || !strings.Contains(string(out), c.want) {
				t.Errorf("error %v, said %q; want status 2 and %q", err, out, c.want)
			}
		})
	}
}
