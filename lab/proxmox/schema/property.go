package schema

import (
	"encoding/json"
	"fmt"
	"regexp"
	"sort"
	"strings"
)

// propertyRule is one key of a property string such as
// "virtio=BC:24:11:00:00:01,bridge=vmbr0".
type propertyRule struct {
	Type       string      `json:"type"`
	Format     string      `json:"format"`
	Alias      string      `json:"alias"`
	KeyAlias   string      `json:"keyAlias"`
	Optional   flag        `json:"optional"`
	DefaultKey flag        `json:"default_key"`
	Min        json.Number `json:"minimum"`
	Max        json.Number `json:"maximum"`
	MaxLen     int         `json:"maxLength"`
	Enum       []string    `json:"enum"`
	Pattern    string      `json:"pattern"`

	pattern *regexp.Regexp
}

// flag is a truth value that the dump writes as 1, "1" or true.
type flag bool

// UnmarshalJSON implements json.Unmarshaler.
func (f *flag) UnmarshalJSON(data []byte) error {
	switch string(data) {
	case "1", `"1"`, "true":
		*f = true
	}
	return nil
}

// Properties splits a property string of an option by the option's format,
// with aliases resolved: {"model": "virtio", "macaddr": …}. A string of
// another option comes back as nil.
func (c *Call) Properties(name, text string) map[string]string {
	r := c.rule(name)
	if r == nil || r.Property == nil {
		return nil
	}
	values, problem := parseProperties(name, r.Property, text)
	if problem != "" {
		return nil
	}
	return values
}

func parseProperties(name string, format map[string]*propertyRule, text string) (map[string]string, string) {
	values := map[string]string{}
	for part := range strings.SplitSeq(text, ",") {
		if part == "" {
			continue
		}
		key, value, found := strings.Cut(part, "=")
		if !found {
			key, value = defaultKey(format), part
			if key == "" {
				return nil, "value without key, but schema does not define a default key"
			}
		}
		rule, ok := format[key]
		if !ok {
			return nil, name + "." + key + ": " + errUnknown
		}
		if rule.KeyAlias != "" {
			values[rule.KeyAlias] = key
		}
		if rule.Alias != "" {
			key = rule.Alias
			rule = format[key]
		}
		if _, twice := values[key]; twice {
			return nil, "duplicate key in comma-separated list property: " + key
		}
		if problem := rule.check(value); problem != "" {
			return nil, name + "." + key + ": " + problem
		}
		values[key] = value
	}
	return values, missingProperty(name, format, values)
}

func missingProperty(name string, format map[string]*propertyRule, values map[string]string) string {
	keys := make([]string, 0, len(format))
	for key := range format {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	for _, key := range keys {
		rule := format[key]
		if _, ok := values[key]; !ok && !bool(rule.Optional) && rule.Alias == "" {
			return name + "." + key + ": " + errMissing
		}
	}
	return ""
}

func defaultKey(format map[string]*propertyRule) string {
	for key, rule := range format {
		if rule.DefaultKey {
			return key
		}
	}
	return ""
}

func (r *propertyRule) check(value string) string {
	if r.Type == "boolean" {
		// In property strings PVE also takes the words of a config file.
		switch strings.ToLower(value) {
		case "on", "yes", "true", "off", "no", "false":
			return ""
		}
	}
	if !typeMatches(r.Type, value) {
		return fmt.Sprintf("type check ('%s') failed - got '%s'", r.Type, value)
	}
	if r.Format != "" {
		if problem := checkFormat(r.Format, "", value); problem != "" {
			return "invalid format - " + problem
		}
	}
	if r.pattern != nil && !r.pattern.MatchString(value) {
		return "value does not match the regex pattern"
	}
	return limits{0, r.MaxLen, number(r.Min), number(r.Max), r.Enum}.check(value)
}

func number(n json.Number) *float64 {
	f, err := n.Float64()
	if err != nil {
		return nil
	}
	return &f
}
