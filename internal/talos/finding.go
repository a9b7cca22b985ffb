package talos

import (
	"fmt"
	"regexp"
	"strings"
)

// Finding is one thing in a configuration that would keep the worker from
// joining, or from being what was asked for.
type Finding struct {
	Field  string // as cluster.ca.crt or LinkConfig[net0].mtu
	Found  string // secrets are masked
	Needed string
	Fix    string // how to get it
}

// String is the finding as one sentence.
func (f Finding) String() string {
	return fmt.Sprintf("%s: found %s, needed is %s; %s", f.Field, f.Found, f.Needed, f.Fix)
}

// Refuse makes an [InvalidConfigError] of findings, and nil of none.
func Refuse(findings []Finding) error {
	if len(findings) == 0 {
		return nil
	}
	messages := make([]string, 0, len(findings))
	for _, f := range findings {
		messages = append(messages, f.String())
	}
	return &InvalidConfigError{Messages: messages}
}

// scrub masks in a text of somebody else what looks like a secret: bootstrap
// tokens, PEM blocks, long base64.
func scrub(text string) string {
	for _, mask := range []struct{ pattern, with string }{
		{`(?s)-----BEGIN [A-Z0-9 ]+-----.*?(-----END [A-Z0-9 ]+-----|$)`, "(PEM hidden)"},
		{`\b([a-z0-9]{6})\.[a-z0-9]{16}\b`, "$1.****"},
		{`[A-Za-z0-9+/=]{40,}`, "(hidden)"},
	} {
		text = regexp.MustCompile(mask.pattern).ReplaceAllString(text, mask.with)
	}
	return strings.TrimSpace(text)
}

// secretPath tells whether the value of a field must never be shown.
func secretPath(path string) bool {
	return regexp.MustCompile(`(?i)(token|secret|password|\.auth$|ca\.key$|serviceAccount\.key$|privateKey|user-?data)`).MatchString(path)
}
