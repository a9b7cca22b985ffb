package domain

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// strict compares a decoded document with the type it shall fill. What passes
// it decodes into the type without loss.
type strict struct{ problems Problems }

// walk checks one value. A null is an absent field: validation asks for it.
func (s *strict) walk(at string, value any, target reflect.Type) {
	for target.Kind() == reflect.Pointer {
		target = target.Elem()
	}
	switch {
	case value == nil:
	case target == reflect.TypeFor[metav1.Time]():
		s.time(at, value)
	case target.Kind() == reflect.Struct:
		s.object(at, value, target)
	case target.Kind() == reflect.Slice:
		s.list(at, value, target.Elem())
	case target.Kind() == reflect.Map:
		s.texts(at, value)
	case target.Kind() == reflect.String:
		if _, ok := value.(string); !ok {
			s.problems.Add(at, kindOf(value), "text", "put it in quotes")
		}
	default:
		s.number(at, value)
	}
}

func (s *strict) object(at string, value any, target reflect.Type) {
	members, ok := value.(map[string]any)
	if !ok {
		s.problems.Add(at, kindOf(value), "a mapping", "write its fields below it, indented")
		return
	}
	known := map[string]reflect.Type{}
	for field := range target.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		known[name] = field.Type
	}
	for _, key := range slices.Sorted(maps.Keys(members)) {
		path := strings.TrimPrefix(at+"."+key, ".")
		if child, ok := known[key]; ok {
			s.walk(path, members[key], child)
			continue
		}
		s.problems.Add(path, "a field that does not exist here", strings.Join(slices.Sorted(maps.Keys(known)), ", "), "correct its name or remove it")
	}
}

func (s *strict) list(at string, value any, element reflect.Type) {
	items, ok := value.([]any)
	if !ok {
		s.problems.Add(at, kindOf(value), "a list", "begin each entry with \"- \"")
		return
	}
	for i, item := range items {
		path := fmt.Sprintf("%s[%d]", at, i)
		if item == nil {
			s.problems.Add(path, "nothing", "an entry", "fill it or remove it")
			continue
		}
		s.walk(path, item, element)
	}
}

// texts checks a mapping of texts, as labels are.
func (s *strict) texts(at string, value any) {
	members, ok := value.(map[string]any)
	if !ok {
		s.problems.Add(at, kindOf(value), "a mapping of texts", "write them below it, indented, as key: value")
		return
	}
	for _, key := range slices.Sorted(maps.Keys(members)) {
		if _, ok := members[key].(string); !ok {
			s.problems.Add(fmt.Sprintf("%s[%s]", at, key), kindOf(members[key]), "text", "put it in quotes")
		}
	}
}

func (s *strict) number(at string, value any) {
	number, ok := value.(json.Number)
	if !ok {
		s.problems.Add(at, kindOf(value), "a whole number", "write it without quotes and units")
		return
	}
	if n, err := strconv.ParseInt(number.String(), 10, 64); err != nil || n < math.MinInt32 || n > math.MaxInt32 {
		s.problems.Add(at, kindOf(value), "a whole number below 2147483648", "write it without fraction and exponent")
	}
}

func (s *strict) time(at string, value any) {
	text, ok := value.(string)
	if !ok || new(metav1.Time).UnmarshalQueryParameter(text) != nil {
		s.problems.Add(at, kindOf(value), "a time, as 2026-11-30T12:00:00Z", "")
	}
}

// kindOf tells a value of a document.
func kindOf(value any) string {
	switch v := value.(type) {
	case nil:
		return "nothing"
	case string:
		return "the text " + Shown(v)
	case json.Number:
		return "the number " + Shown(v.String())
	case bool:
		return fmt.Sprintf("the value %t", v)
	case []any:
		return "a list"
	default:
		return "a mapping"
	}
}
