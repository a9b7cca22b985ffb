package kamaji

import (
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

func asUnstructured(object map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: object}
}

// covers tells whether the actual object has all that is wanted: each map
// entry, and lists of the same length. Defaults that the API server added, and
// what others wrote beside it, do not count; nor does the status.
func covers(actual, wanted any) (bool, error) {
	has, err := runtime.DefaultUnstructuredConverter.ToUnstructured(actual)
	if err != nil {
		return false, fmt.Errorf("compare objects: %w", err)
	}
	wants, err := runtime.DefaultUnstructuredConverter.ToUnstructured(wanted)
	if err != nil {
		return false, fmt.Errorf("compare objects: %w", err)
	}
	for _, key := range []string{"status", "kind", "apiVersion"} {
		delete(wants, key)
	}
	return covered(has, wants), nil
}

func covered(has, wants any) bool {
	switch want := wants.(type) {
	case map[string]any:
		have, ok := has.(map[string]any)
		if !ok {
			return len(want) == 0 && has == nil
		}
		for key, value := range want {
			if !covered(have[key], value) {
				return false
			}
		}
		return true
	case []any:
		have, ok := has.([]any)
		if !ok || len(have) != len(want) {
			return len(want) == 0 && has == nil
		}
		for i := range want {
			if !covered(have[i], want[i]) {
				return false
			}
		}
		return true
	case nil:
		return true
	default:
		return reflect.DeepEqual(has, wants)
	}
}
