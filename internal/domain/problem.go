package domain

import (
	"fmt"
	"strings"
)

// Problem is one finding about what a person gave: which field, what was found
// there, what is allowed, and what to do.
type Problem struct {
	Field   string `json:"field"`
	Found   string `json:"found"`
	Allowed string `json:"allowed"`
	Do      string `json:"do,omitempty"`
}

// Error tells the finding in one line.
func (p Problem) Error() string {
	text := fmt.Sprintf("%s: found %s; allowed: %s", p.Field, p.Found, p.Allowed)
	if p.Do != "" {
		text += "; " + p.Do
	}
	return text
}

// Problems are all findings about one document.
type Problems []Problem

// Error tells all findings, one a line.
func (p Problems) Error() string {
	lines := make([]string, 0, len(p))
	for _, one := range p {
		lines = append(lines, one.Error())
	}
	return strings.Join(lines, "\n")
}

// Add appends a finding.
func (p *Problems) Add(field, found, allowed, do string) {
	*p = append(*p, Problem{Field: field, Found: found, Allowed: allowed, Do: do})
}

// Err returns the findings as an error, or nil if there are none.
func (p Problems) Err() error {
	if len(p) == 0 {
		return nil
	}
	return p
}

// Shown quotes a value for a finding and keeps it short.
func Shown(value any) string {
	text := fmt.Sprint(value)
	if text == "" {
		return "nothing"
	}
	const most = 80
	if runes := []rune(text); len(runes) > most {
		text = string(runes[:most]) + "…"
	}
	if _, isText := value.(string); isText {
		return fmt.Sprintf("%q", text)
	}
	return text
}
