package site

import (
	"encoding"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// walk compares a decoded document with the type it shall fill: unknown
// fields, wrong kinds and texts that do not parse. What passes it decodes.
func (r *report) walk(field string, value any, target reflect.Type) {
	for target.Kind() == reflect.Pointer {
		target = target.Elem()
	}
	if value == nil {
		return // an empty field is an absent one; validation asks for it
	}
	if reflect.PointerTo(target).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
		r.walkText(field, value, target)
		return
	}
	switch target.Kind() {
	case reflect.Struct:
		r.walkStruct(field, value, target)
	case reflect.Slice:
		list, ok := value.([]any)
		if !ok {
			r.add(field, describe(value), "a list", "put each entry on its own line after \"- \"")
			return
		}
		for i, one := range list {
			if one == nil {
				r.add(fmt.Sprintf("%s[%d]", field, i), "nothing", "an entry", "fill the entry or remove it")
				continue
			}
			r.walk(fmt.Sprintf("%s[%d]", field, i), one, target.Elem())
		}
	case reflect.Map:
		if _, ok := value.(map[string]any); !ok {
			r.add(field, describe(value), "a mapping", "write fields below it, indented")
		}
	default:
		r.walkScalar(field, value, target.Kind())
	}
}

func (r *report) walkStruct(field string, value any, target reflect.Type) {
	object, ok := value.(map[string]any)
	if !ok {
		r.add(orDocument(field), describe(value), "a mapping", "write fields below it, indented")
		return
	}
	known := fieldsOf(target)
	for _, key := range slices.Sorted(maps.Keys(object)) {
		path := key
		if field != "" {
			path = field + "." + key
		}
		child, ok := known[key]
		if !ok {
			names := slices.Sorted(maps.Keys(known))
			do := "remove it"
			if near := nearest(key, names); near != "" {
				do = fmt.Sprintf("did you mean %q?", near)
			}
			r.add(path, "a field this document does not have", strings.Join(names, ", "), do)
			continue
		}
		r.walk(path, object[key], child)
	}
}

func (r *report) walkScalar(field string, value any, kind reflect.Kind) {
	switch kind {
	case reflect.String:
		if _, ok := value.(string); !ok {
			r.add(field, describe(value), "text", "put it in quotes")
		}
	case reflect.Bool:
		if _, ok := value.(bool); !ok {
			r.add(field, describe(value), "true or false", "write true or false without quotes")
		}
	case reflect.Int:
		number, ok := value.(json.Number)
		if !ok {
			r.add(field, describe(value), "a whole number", "write it without quotes and units")
			return
		}
		if n, err := strconv.ParseInt(number.String(), 10, 64); err != nil || n > math.MaxInt32 || n < math.MinInt32 {
			r.add(field, describe(value), "a whole number below 2147483648", "write it without a fraction")
		}
	}
}

// walkText checks a value whose type parses itself from text.
func (r *report) walkText(field string, value any, target reflect.Type) {
	allowed := textForm(target)
	text, ok := value.(string)
	if !ok {
		r.add(field, describe(value), allowed, "write it as text")
		return
	}
	instance, ok := reflect.New(target).Interface().(encoding.TextUnmarshaler)
	if ok && instance.UnmarshalText([]byte(text)) != nil {
		r.add(field, shown(text), allowed, "")
	}
}

// textForm says in words what a self-parsing type takes.
func textForm(target reflect.Type) string {
	switch target {
	case reflect.TypeFor[netip.Addr]():
		return "an IP address, as 10.1.1.1"
	case reflect.TypeFor[netip.Prefix]():
		return "a range in CIDR form, as 10.1.1.0/24"
	case reflect.TypeFor[netip.AddrPort]():
		return "address:port, as 192.168.0.2:18000"
	default:
		return "a text " + target.String() + " can be read from"
	}
}

// fieldsOf returns the types of a struct's fields by their names in JSON.
func fieldsOf(target reflect.Type) map[string]reflect.Type {
	fields := make(map[string]reflect.Type, target.NumField())
	for i := range target.NumField() {
		name, _, _ := strings.Cut(target.Field(i).Tag.Get("json"), ",")
		fields[name] = target.Field(i).Type
	}
	return fields
}

// describe tells what kind of value stands in the document.
func describe(value any) string {
	switch v := value.(type) {
	case nil:
		return "nothing"
	case string:
		return "the text " + shown(v)
	case json.Number:
		return "the number " + v.String()
	case bool:
		return fmt.Sprintf("the value %t", v)
	case []any:
		return "a list"
	default:
		return "a mapping"
	}
}

func orDocument(field string) string {
	if field == "" {
		return "(document)"
	}
	return field
}

// nearest returns the known name that is most alike, or nothing when none is
// within a third of the name's length.
func nearest(name string, known []string) string {
	best, bestDistance := "", len(name)/3+2
	for _, candidate := range known {
		if d := distance(strings.ToLower(name), strings.ToLower(candidate)); d < bestDistance {
			best, bestDistance = candidate, d
		}
	}
	return best
}

// distance is the number of single-character edits between two names.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		previous := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			previous, row[j] = row[j], min(row[j]+1, row[j-1]+1, previous+cost)
		}
	}
	return row[len(b)]
}
