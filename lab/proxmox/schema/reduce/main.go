// Command reduce makes schema.json from a full dump of PVE's API facts: it
// keeps the calls of calls.txt and of each parameter only what validation
// needs, every distinct definition once.
//
//	go run ./lab/proxmox/schema/reduce pve-api-schema.json > lab/proxmox/schema/schema.json
package main

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
)

//go:embed calls.txt
var calls string

type fullParameter struct {
	Name       string     `json:"name"`
	Definition definition `json:"definition"`
}

type definition struct {
	Type      string          `json:"type"`
	Optional  bool            `json:"optional"`
	Format    json.RawMessage `json:"format"`
	Minimum   *float64        `json:"minimum"`
	Maximum   *float64        `json:"maximum"`
	MinLength int             `json:"min_length"`
	MaxLength int             `json:"max_length"`
	Enum      []string        `json:"enum"`
	Pattern   string          `json:"pattern"`
	Items     *definition     `json:"items"`
	Extra     struct {
		Requires string `json:"requires"`
	} `json:"extra"`
}

type fullMethod struct {
	Verb        string          `json:"verb"`
	AllowToken  bool            `json:"allow_token"`
	Parameters  []fullParameter `json:"parameters"`
	Permissions *struct {
		User       string `json:"user"`
		Expression struct {
			Check json.RawMessage `json:"check"`
		} `json:"expression"`
	} `json:"permissions"`
}

type full struct {
	Paths []struct {
		Path    string       `json:"path"`
		Methods []fullMethod `json:"methods"`
	} `json:"paths"`
}

type rule struct {
	Type     string          `json:"t,omitempty"`
	Optional bool            `json:"o,omitempty"`
	Format   string          `json:"f,omitempty"`
	Property json.RawMessage `json:"p,omitempty"`
	Min      *float64        `json:"min,omitempty"`
	Max      *float64        `json:"max,omitempty"`
	MinLen   int             `json:"nl,omitempty"`
	MaxLen   int             `json:"ml,omitempty"`
	Enum     []string        `json:"e,omitempty"`
	Pattern  string          `json:"r,omitempty"`
	Requires string          `json:"q,omitempty"`
}

type call struct {
	User   string          `json:"user,omitempty"`
	Check  json.RawMessage `json:"check,omitempty"`
	Ticket bool            `json:"ticket,omitempty"`
	Params map[string]int  `json:"params,omitempty"`
}

type reduced struct {
	Rules []rule                     `json:"rules"`
	Calls map[string]map[string]call `json:"calls"`
}

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "reduce:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	if len(args) != 1 {
		return fmt.Errorf("arguments: found %d; give one, the file with the full facts", len(args))
	}
	data, err := os.ReadFile(args[0])
	if err != nil {
		return fmt.Errorf("read facts: %w", err)
	}
	var f full
	if err := json.Unmarshal(data, &f); err != nil {
		return fmt.Errorf("parse facts: %w", err)
	}
	wanted := map[string]bool{}
	for line := range strings.Lines(calls) {
		wanted[strings.TrimSpace(line)] = true
	}
	r, err := reduceAll(f, wanted)
	if err != nil {
		return err
	}
	for name := range wanted {
		return fmt.Errorf("calls.txt: %q is not in the facts", name)
	}
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	_, err = fmt.Fprintln(out, strings.ReplaceAll(strings.ReplaceAll(string(text), `{"t":`, "\n"+`{"t":`), `"/`, "\n"+`"/`))
	return err
}

// reduceAll takes what it found out of wanted.
func reduceAll(f full, wanted map[string]bool) (reduced, error) {
	r := reduced{Calls: map[string]map[string]call{}}
	index := map[string]int{}
	for _, p := range f.Paths {
		for _, m := range p.Methods {
			key := m.Verb + " " + p.Path
			if !wanted[key] {
				continue
			}
			delete(wanted, key)
			c := call{Ticket: !m.AllowToken, Params: map[string]int{}}
			if m.Permissions != nil {
				c.User, c.Check = m.Permissions.User, m.Permissions.Expression.Check
			}
			for _, q := range m.Parameters {
				text, err := json.Marshal(reduceRule(q.Definition))
				if err != nil {
					return r, fmt.Errorf("%s: %s: %w", key, q.Name, err)
				}
				if _, ok := index[string(text)]; !ok {
					index[string(text)] = len(r.Rules)
					r.Rules = append(r.Rules, reduceRule(q.Definition))
				}
				c.Params[q.Name] = index[string(text)]
			}
			if r.Calls[p.Path] == nil {
				r.Calls[p.Path] = map[string]call{}
			}
			r.Calls[p.Path][m.Verb] = c
		}
	}
	return r, nil
}

func reduceRule(d definition) rule {
	out := rule{
		Type: d.Type, Optional: d.Optional, Min: d.Minimum, Max: d.Maximum,
		MinLen: d.MinLength, MaxLen: d.MaxLength, Enum: d.Enum, Requires: d.Extra.Requires,
		Pattern: goPattern(d.Pattern),
	}
	var name string
	switch err := json.Unmarshal(d.Format, &name); {
	case len(d.Format) == 0:
	case err == nil:
		out.Format = name
	default:
		out.Property = json.RawMessage(goPattern(string(d.Format)))
	}
	return out
}

// goPattern rewrites Perl's way to print a compiled expression.
func goPattern(p string) string { return strings.ReplaceAll(p, "(?^:", "(?:") }
