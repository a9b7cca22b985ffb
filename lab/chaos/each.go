package chaos

import (
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"
)

// each calls f for every object of a list, with its kind.
func each(list kubeclient.ObjectList, f func(kind string, o kubeclient.Object)) error {
	err := meta.EachListItem(list, func(item runtime.Object) error {
		o, ok := item.(kubeclient.Object)
		if !ok {
			return fmt.Errorf("%T is not an object", item)
		}
		kind := o.GetObjectKind().GroupVersionKind().Kind
		if kind == "" {
			kind = reflect.TypeOf(o).Elem().Name()
		}
		f(kind, o)
		return nil
	})
	if err != nil {
		return fmt.Errorf("go through %T: %w", list, err)
	}
	return nil
}
