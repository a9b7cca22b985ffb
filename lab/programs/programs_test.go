package programs

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"aether.internal/aether/lab/registry"
)

func TestShell(t *testing.T) {
	t.Setenv("NAME", "world")
	cases := []struct {
		script, out string
		code        int
	}{
		{script: `echo hello "$NAME" '$NAME' ${NAME}s`, out: "hello world $NAME worlds\n"},
		{script: "false && echo no; echo yes", out: "yes\n"},
		{script: "false || echo yes", out: "yes\n"},
		{script: "true || echo no", out: ""},
		{script: "cat /nothing", out: "cat: open /nothing: no such file or directory\n", code: 1},
		{script: "echo a\necho b", out: "a\nb\n"},
		{script: "no-such-program", out: "sh: no-such-program: not found\n", code: 127},
		{script: "echo a | cat", out: "sh: \"|\" is not known to this shell; it has ; && || only\n", code: 2},
		{script: "echo 'open", out: "sh: a quote is not closed\n", code: 2},
	}
	for _, c := range cases {
		t.Run(c.script, func(t *testing.T) {
			var out bytes.Buffer
			code := sh([]string{"-ec", c.script}, stdio{in: strings.NewReader(""), out: &out, err: &out})
			if diff := cmp.Diff(c.out, out.String()); diff != "" || code != c.code {
				t.Errorf("exit code %d, want %d; output (-want +got):\n%s", code, c.code, diff)
			}
		})
	}
}

// An image of the catalogue that names the lab's binary must name commands
// that the binary knows.
func TestEveryCommandOfTheCatalogueExists(t *testing.T) {
	for _, image := range registry.Catalogue() {
		if image.Program != "lab" {
			continue
		}
		for _, command := range image.Commands {
			if !Has(command) {
				t.Errorf("%s holds %q, which is no program", image.Ref, command)
			}
		}
	}
}

func TestUnknownProgram(t *testing.T) {
	if code := Main("no-such-program", nil); code != 127 {
		t.Errorf("exit code %d, want 127", code)
	}
}
