package schema

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"sort"
	"strconv"
	"strings"
)

//go:embed schema.json
var facts []byte

// Call is one method of one path.
type Call struct {
	Verb string
	Path string // with {names}

	// User is "all" for anybody who is logged in, "world" for anybody, and
	// empty when Check decides.
	User string
	// Check is PVE's permission expression.
	Check Expression
	// TicketOnly tells that API tokens are refused.
	TicketOnly bool

	params   map[string]*rule
	segments []string
}

// Expression is a permission check as PVE writes it: an operator and its
// arguments, strings, numbers or nested lists.
type Expression []any

// Schema is all calls.
type Schema struct {
	calls []*Call
}

type rule struct {
	Type     string                   `json:"t"`
	Optional bool                     `json:"o"`
	Format   string                   `json:"f"`
	Property map[string]*propertyRule `json:"p"`
	Min      *float64                 `json:"min"`
	Max      *float64                 `json:"max"`
	MinLen   int                      `json:"nl"`
	MaxLen   int                      `json:"ml"`
	Enum     []string                 `json:"e"`
	Pattern  string                   `json:"r"`
	Requires string                   `json:"q"`

	pattern *regexp.Regexp
}

// Load reads the embedded facts.
func Load() (*Schema, error) {
	var file struct {
		Rules []*rule `json:"rules"`
		Calls map[string]map[string]struct {
			User   string         `json:"user"`
			Check  Expression     `json:"check"`
			Ticket bool           `json:"ticket"`
			Params map[string]int `json:"params"`
		} `json:"calls"`
	}
	if err := json.Unmarshal(facts, &file); err != nil {
		return nil, fmt.Errorf("parse embedded schema: %w", err)
	}
	for i, r := range file.Rules {
		if err := r.compile(); err != nil {
			return nil, fmt.Errorf("embedded schema: rule %d: %w", i, err)
		}
	}
	s := &Schema{}
	for path, verbs := range file.Calls {
		for verb, c := range verbs {
			call := &Call{
				Verb: verb, Path: path, User: c.User, Check: c.Check, TicketOnly: c.Ticket,
				params: map[string]*rule{}, segments: split(path),
			}
			for name, i := range c.Params {
				call.params[name] = file.Rules[i]
			}
			s.calls = append(s.calls, call)
		}
	}
	sort.Slice(s.calls, func(i, j int) bool {
		a, b := s.calls[i], s.calls[j]
		return a.Path+" "+a.Verb < b.Path+" "+b.Verb
	})
	return s, nil
}

func (r *rule) compile() error {
	var err error
	if r.Pattern != "" {
		if r.pattern, err = regexp.Compile("^(?:" + r.Pattern + ")$"); err != nil {
			return fmt.Errorf("pattern: %w", err)
		}
	}
	for name, p := range r.Property {
		if p.Pattern == "" {
			continue
		}
		if p.pattern, err = regexp.Compile("^(?:" + p.Pattern + ")$"); err != nil {
			return fmt.Errorf("pattern of %s: %w", name, err)
		}
	}
	return nil
}

// Calls lists all calls, sorted by path and verb.
func (s *Schema) Calls() []*Call { return s.calls }

// Find returns the call for a verb and the escaped path of a request, with the
// values of the path's names. Empty segments do not count. A path's last name
// {volume} takes all that is left, since volume IDs contain slashes.
func (s *Schema) Find(verb, escaped string) (*Call, map[string]string) {
	segments := split(escaped)
	for i, seg := range segments {
		if plain, err := url.PathUnescape(seg); err == nil {
			segments[i] = plain
		}
	}
	var best *Call
	var values map[string]string
	for _, c := range s.calls {
		if c.Verb != verb {
			continue
		}
		// A path without names wins over one with: /a/b before /a/{x}.
		if got, ok := c.match(segments); ok && (best == nil || len(got) < len(values)) {
			best, values = c, got
		}
	}
	return best, values
}

func (c *Call) match(segments []string) (map[string]string, bool) {
	values := map[string]string{}
	for i, want := range c.segments {
		if i >= len(segments) {
			return nil, false
		}
		switch {
		case want == "{volume}":
			values["volume"] = strings.Join(segments[i:], "/")
			return values, true
		case strings.HasPrefix(want, "{"):
			values[strings.Trim(want, "{}")] = segments[i]
		case want != segments[i]:
			return nil, false
		}
	}
	return values, len(segments) == len(c.segments)
}

func split(path string) []string {
	var out []string
	for seg := range strings.SplitSeq(path, "/") {
		if seg != "" {
			out = append(out, seg)
		}
	}
	return out
}

// Defined tells whether the call has a parameter of that name, where net0
// stands for net[n].
func (c *Call) Defined(name string) bool { return c.rule(name) != nil }

// Type returns the type of a parameter, or "".
func (c *Call) Type(name string) string {
	if r := c.rule(name); r != nil {
		return r.Type
	}
	return ""
}

func (c *Call) rule(name string) *rule {
	if r, ok := c.params[name]; ok && !strings.HasSuffix(name, "[n]") {
		return r
	}
	base, index, ok := SplitIndex(name)
	if !ok || index > maxIndex(base) {
		return nil
	}
	return c.params[base+"[n]"]
}

// SplitIndex splits net12 into net and 12.
func SplitIndex(name string) (base string, index int, ok bool) {
	base = strings.TrimRight(name, "0123456789")
	digits := name[len(base):]
	if base == "" || digits == "" || (len(digits) > 1 && digits[0] == '0') {
		return "", 0, false
	}
	index, err := strconv.Atoi(digits)
	return base, index, err == nil
}

// maxIndex is the highest N of an indexed option, which the dump leaves out.
func maxIndex(base string) int {
	switch base {
	case "ide", "serial":
		return 3
	case "sata":
		return 5
	case "scsi":
		return 30
	case "net", "ipconfig":
		return 31
	case "unused":
		return 255
	case "usb":
		return 14
	case "numa":
		return 7
	case "parallel":
		return 2
	case "virtiofs":
		return 9
	default: // virtio, hostpci
		return 15
	}
}
