package schema

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Values are the checked parameters of a call: booleans are "0" or "1".
type Values struct {
	scalars map[string]string
	lists   map[string][]string
}

// Has tells whether the parameter was given.
func (v Values) Has(name string) bool {
	_, scalar := v.scalars[name]
	_, list := v.lists[name]
	return scalar || list
}

// Get returns a parameter as text, or "".
func (v Values) Get(name string) string { return v.scalars[name] }

// Bool returns a boolean parameter, false when it was not given.
func (v Values) Bool(name string) bool { return v.scalars[name] == "1" }

// Int returns an integer parameter, or def when it was not given.
func (v Values) Int(name string, def int) int {
	n, err := strconv.Atoi(v.scalars[name])
	if err != nil {
		return def
	}
	return n
}

// List returns an array parameter.
func (v Values) List(name string) []string { return v.lists[name] }

// Map returns a copy of all scalars.
func (v Values) Map() map[string]string {
	out := make(map[string]string, len(v.scalars))
	for k, s := range v.scalars {
		out[k] = s
	}
	return out
}

const (
	errMissing = "property is missing and it is not optional"
	errUnknown = "property is not defined in schema and the schema does not allow additional properties"
)

// Validate checks raw parameters: strings, json.Number, bool, nil and []any as
// they come from a form or a JSON body. All problems are reported together,
// by parameter.
func (c *Call) Validate(raw map[string]any) (Values, map[string]string) {
	v := Values{scalars: map[string]string{}, lists: map[string][]string{}}
	problems := map[string]string{}
	for name, value := range raw {
		if value == nil {
			continue
		}
		r := c.rule(name)
		if r == nil {
			problems[name] = errUnknown
			continue
		}
		if problem := v.take(name, r, value); problem != "" {
			problems[name] = problem
		}
	}
	for name, r := range c.params {
		if !r.Optional && raw[name] == nil && !strings.HasSuffix(name, "[n]") {
			problems[name] = errMissing
		}
		if r.Requires != "" && raw[name] != nil && raw[r.Requires] == nil {
			problems[r.Requires] = fmt.Sprintf("missing property required by '%s'", name)
		}
	}
	if len(problems) == 0 {
		problems = nil
	}
	return v, problems
}

func (v Values) take(name string, r *rule, value any) string {
	items, isArray := value.([]any)
	if r.Type == "array" {
		if !isArray {
			items = []any{value}
		}
		list := make([]string, 0, len(items))
		for _, item := range items {
			text, ok := scalar(item)
			if !ok {
				return "type check ('string') failed - got " + kindOf(item)
			}
			list = append(list, text)
		}
		v.lists[name] = list
		return ""
	}
	if isArray {
		if !strings.HasSuffix(r.Format, "-list") {
			return "type check ('" + r.Type + "') failed - got ARRAY"
		}
		parts := make([]string, 0, len(items))
		for _, item := range items {
			text, _ := scalar(item)
			parts = append(parts, text)
		}
		value = strings.Join(parts, ",")
	}
	text, ok := scalar(value)
	if !ok {
		return "type check ('" + r.Type + "') failed - got " + kindOf(value)
	}
	if problem := r.check(name, text); problem != "" {
		return problem
	}
	v.scalars[name] = text
	return ""
}

func kindOf(value any) string {
	if _, ok := value.([]any); ok {
		return "ARRAY"
	}
	return "HASH"
}

func scalar(value any) (string, bool) {
	switch x := value.(type) {
	case string:
		return x, true
	case json.Number:
		return x.String(), true
	case bool:
		if x {
			return "1", true
		}
		return "0", true
	default:
		return "", false
	}
}

func (r *rule) check(name, text string) string {
	if !typeMatches(r.Type, text) {
		return fmt.Sprintf("type check ('%s') failed - got '%s'", r.Type, text)
	}
	if r.Property != nil {
		if _, problem := parseProperties(name, r.Property, text); problem != "" {
			return "invalid format - format error\n" + problem + "\n"
		}
	}
	if r.Format != "" {
		if problem := checkFormat(r.Format, name, text); problem != "" {
			return "invalid format - " + problem + "\n"
		}
	}
	if r.pattern != nil && !r.pattern.MatchString(text) {
		return "value does not match the regex pattern"
	}
	return limits{r.MinLen, r.MaxLen, r.Min, r.Max, r.Enum}.check(text)
}

type limits struct {
	minLen, maxLen int
	min, max       *float64
	enum           []string
}

func (l limits) check(text string) string {
	if l.maxLen > 0 && len(text) > l.maxLen {
		return fmt.Sprintf("value may only be %d characters long", l.maxLen)
	}
	if l.minLen > 0 && len(text) < l.minLen {
		return fmt.Sprintf("value must be at least %d characters long", l.minLen)
	}
	if n, err := strconv.ParseFloat(text, 64); err == nil {
		if l.max != nil && n > *l.max {
			return "value must have a maximum value of " + trimFloat(*l.max)
		}
		if l.min != nil && n < *l.min {
			return "value must have a minimum value of " + trimFloat(*l.min)
		}
	}
	if l.enum == nil {
		return ""
	}
	for _, e := range l.enum {
		if e == text {
			return ""
		}
	}
	return fmt.Sprintf("value '%s' does not have a value in the enumeration '%s'", text, strings.Join(l.enum, ", "))
}

func trimFloat(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

func typeMatches(kind, text string) bool {
	switch kind {
	case "boolean":
		return text == "0" || text == "1"
	case "integer":
		return matches(`^[+-]?\d+$`, text)
	case "number":
		return matches(`^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$`, text)
	default:
		return true
	}
}

func matches(pattern, text string) bool {
	ok, err := regexp.MatchString(pattern, text)
	return err == nil && ok
}
