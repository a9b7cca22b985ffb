package talos

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"regexp"
)

// BootstrapToken is a Kubernetes bootstrap token, id.secret. Printing, logging
// or encoding it shows the ID only; [BootstrapToken.Reveal] gives the whole.
type BootstrapToken struct {
	id, secret string
}

const tokenForm = "6 letters or digits, a dot, 16 letters or digits, all lower case"

func tokenPattern() *regexp.Regexp { return regexp.MustCompile(`^([a-z0-9]{6})\.([a-z0-9]{16})$`) }

// NewBootstrapToken makes a random token.
func NewBootstrapToken() (BootstrapToken, error) {
	id, err := randomLetters(6)
	if err != nil {
		return BootstrapToken{}, err
	}
	secret, err := randomLetters(16)
	if err != nil {
		return BootstrapToken{}, err
	}
	return BootstrapToken{id: id, secret: secret}, nil
}

// ParseBootstrapToken reads id.secret. Its error does not quote the input.
func ParseBootstrapToken(text string) (BootstrapToken, error) {
	parts := tokenPattern().FindStringSubmatch(text)
	if parts == nil {
		return BootstrapToken{}, fmt.Errorf("bootstrap token: %d characters of another form; needed are %s", len(text), tokenForm)
	}
	return BootstrapToken{id: parts[1], secret: parts[2]}, nil
}

// ID is the public half: the name of the Secret is bootstrap-token-<ID>.
func (t BootstrapToken) ID() string { return t.id }

// Secret is the private half.
func (t BootstrapToken) Secret() string { return t.secret }

// Reveal returns the whole token.
func (t BootstrapToken) Reveal() string { return t.id + "." + t.secret }

// IsZero tells that no token was set.
func (t BootstrapToken) IsZero() bool { return t.id == "" && t.secret == "" }

// String shows the ID and hides the secret.
func (t BootstrapToken) String() string {
	if t.IsZero() {
		return ""
	}
	return t.id + ".****"
}

// GoString hides the secret from %#v.
func (t BootstrapToken) GoString() string { return "talos.BootstrapToken(" + t.String() + ")" }

// LogValue hides the secret from structured logs.
func (t BootstrapToken) LogValue() slog.Value { return slog.StringValue(t.String()) }

// MarshalJSON hides the secret: it must not become part of a workflow's history.
func (t BootstrapToken) MarshalJSON() ([]byte, error) {
	return json.Marshal(t.String())
}

// randomLetters draws from 36 characters without bias.
func randomLetters(n int) (string, error) {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
	const unbiased = 256 - 256%len(letters)
	out := make([]byte, 0, n)
	buf := make([]byte, 2*n)
	for len(out) < n {
		if _, err := rand.Read(buf); err != nil {
			return "", fmt.Errorf("draw random token: %w", err)
		}
		for _, b := range buf {
			if int(b) < unbiased && len(out) < n {
				out = append(out, letters[int(b)%len(letters)])
			}
		}
	}
	return string(out), nil
}
