package kamaji_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"aether.internal/aether/internal/kamaji"
)

// printed shows a value in all usual ways.
func printed(value any) []string {
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "value", value)
	encoded, err := json.Marshal(value)
	return []string{fmt.Sprintf("%v %+v %#v %s", value, value, value, value), log.String(), string(encoded), fmt.Sprint(err)}
}

func TestErrors(t *testing.T) {
	resource := schema.GroupResource{Group: "kamaji.clastix.io", Resource: "tenantcontrolplanes"}
	kind := schema.GroupKind{Group: "kamaji.clastix.io", Kind: "TenantControlPlane"}
	denied := &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden,
		Message: `admission webhook "vtenantcontrolplane.kb.io" denied the request: nope DataStore does not exist`,
	}}
	for _, test := range []struct {
		name   string
		answer error
		want   error
		fields []string
	}{
		{"refused by the schema", apierrors.NewInvalid(kind, "t1", field.ErrorList{field.Required(field.NewPath("spec", "kubernetes", "version"), "")}), kamaji.ErrInvalid, []string{"spec.kubernetes.version"}},
		{"refused by the webhook", denied, kamaji.ErrInvalid, []string{""}},
		{"no right", apierrors.NewForbidden(resource, "t1", errors.New("rbac")), kamaji.ErrForbidden, nil},
		{"no login", apierrors.NewUnauthorized("token"), kamaji.ErrForbidden, nil},
		{"strict decoding", apierrors.NewBadRequest(`strict decoding error: unknown field "spec.foo"`), kamaji.ErrInvalid, []string{""}},
		{"webhook down", apierrors.NewInternalError(errors.New(`failed calling webhook "mtenantcontrolplane.kb.io"`)), kamaji.ErrUnavailable, nil},
		{"conflict", apierrors.NewConflict(resource, "t1", errors.New("again")), kamaji.ErrConflict, nil},
		{"namespace missing", apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "tenant-t1"), kamaji.ErrNotFound, nil},
		{"no connection", &http.MaxBytesError{}, kamaji.ErrUnavailable, nil},
		{"time is up", context.DeadlineExceeded, kamaji.ErrUnavailable, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			api := interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
				Delete: func(context.Context, client.WithWatch, client.Object, ...client.DeleteOption) error {
					return test.answer
				},
			})
			c, err := kamaji.New(api, kamaji.Options{})
			if err != nil {
				t.Fatal(err)
			}
			err = c.Delete(t.Context(), spec().Ref)
			if errors.Is(test.want, kamaji.ErrNotFound) {
				if err != nil {
					t.Errorf("delete what is not there: %v", err)
				}
				return
			}
			if !errors.Is(err, test.want) {
				t.Fatalf("%v is not %v", err, test.want)
			}
			for _, other := range []error{kamaji.ErrInvalid, kamaji.ErrForbidden, kamaji.ErrConflict, kamaji.ErrUnavailable, kamaji.ErrNotFound} {
				if !errors.Is(other, test.want) && errors.Is(err, other) {
					t.Errorf("%v is %v as well", err, other)
				}
			}
			var invalid *kamaji.InvalidError
			if errors.As(err, &invalid) != (test.fields != nil) {
				t.Fatalf("error %T", err)
			}
			for i, want := range test.fields {
				if invalid.Fields[i].Field != want || invalid.Fields[i].Message == "" {
					t.Errorf("field %d: %+v, want %q", i, invalid.Fields[i], want)
				}
			}
			if !strings.Contains(err.Error(), "tenant-t1/t1") {
				t.Errorf("error does not name the control plane: %v", err)
			}
		})
	}
}
