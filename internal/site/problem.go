package site

import (
	"fmt"
	"slices"
	"strings"
)

// Problem is one finding about a site file.
type Problem struct {
	Field   string // path of the field, as spec.networks[1].cidr
	Found   string // what stands there
	Allowed string // what may stand there
	Do      string // what the operator should do
}

// Error tells the finding in one line.
func (p Problem) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: found %s; allowed: %s", p.Field, p.Found, p.Allowed)
	if p.Do != "" {
		fmt.Fprintf(&b, "; %s", p.Do)
	}
	return b.String()
}

// Problems are all findings about one site file, in order of their fields in
// the document.
type Problems []Problem

// Error tells all findings, one a line.
func (p Problems) Error() string {
	if len(p) == 1 {
		return "site file: " + p[0].Error()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "site file: %d problems", len(p))
	for _, one := range p {
		b.WriteString("\n  ")
		b.WriteString(one.Error())
	}
	return b.String()
}

// Unwrap gives each finding to errors.As.
func (p Problems) Unwrap() []error {
	list := make([]error, 0, len(p))
	for _, one := range p {
		list = append(list, one)
	}
	return list
}

// report collects findings.
type report struct{ problems Problems }

func (r *report) add(field, found, allowed, do string) {
	r.problems = append(r.problems, Problem{Field: field, Found: found, Allowed: allowed, Do: do})
}

func (r *report) err() error {
	if len(r.problems) == 0 {
		return nil
	}
	return slices.Clone(r.problems)
}

// shown quotes a value for a finding and keeps it short.
func shown(value any) string {
	text := fmt.Sprintf("%v", value)
	const most = 80
	if runes := []rune(text); len(runes) > most {
		text = string(runes[:most]) + "…"
	}
	if _, number := value.(int); number {
		return text
	}
	if text == "" {
		return "nothing"
	}
	return fmt.Sprintf("%q", text)
}
