package kamaji

import (
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What a caller may tell apart, with errors.Is.
var (
	// ErrNotFound means that the control plane, or an object of it, is not there.
	ErrNotFound = errors.New("not found")
	// ErrInvalid means that the spec was refused: it must change.
	ErrInvalid = errors.New("refused as invalid")
	// ErrForbidden means that the management cluster did not allow the call.
	ErrForbidden = errors.New("not allowed")
	// ErrConflict means that another writer came first; look and try again.
	ErrConflict = errors.New("changed by another writer")
	// ErrUnavailable means that nobody could answer: the outcome is unknown, and
	// Kamaji's webhooks being down looks like this too.
	ErrUnavailable = errors.New("no answer")
)

// FieldProblem is what was said about one field.
type FieldProblem struct {
	Field   string // empty when the answer named none
	Message string
}

// InvalidError is an ErrInvalid with what the API server or Kamaji's webhook
// said.
type InvalidError struct {
	Ref    Ref
	Fields []FieldProblem
}

// Error tells the findings.
func (e *InvalidError) Error() string {
	texts := make([]string, 0, len(e.Fields))
	for _, f := range e.Fields {
		if f.Field == "" {
			texts = append(texts, f.Message)
		} else {
			texts = append(texts, f.Field+": "+f.Message)
		}
	}
	return fmt.Sprintf("control plane %s was %s: %s", e.Ref, ErrInvalid, strings.Join(texts, "; "))
}

// Is makes it an ErrInvalid.
func (e *InvalidError) Is(target error) bool { return target == ErrInvalid }

// sorted turns an answer of the management API into one of the errors above.
// What the API server says has no Secret's content in it.
func sorted(verb string, ref Ref, err error) error {
	if err == nil {
		return nil
	}
	wrap := func(class error) error { return fmt.Errorf("%s control plane %s: %w: %w", verb, ref, class, err) }
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return wrap(ErrUnavailable)
	}
	switch {
	case apierrors.IsNotFound(err):
		return wrap(ErrNotFound)
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), deniedByWebhook(status.Status()):
		return &InvalidError{Ref: ref, Fields: fieldsOf(status.Status())}
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		return wrap(ErrForbidden)
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return wrap(ErrConflict)
	default:
		return wrap(ErrUnavailable)
	}
}

// deniedByWebhook tells a webhook's refusal from a missing permission: both
// are Forbidden, but only the authorizer's names the object it is about.
func deniedByWebhook(status metav1.Status) bool {
	return status.Reason == metav1.StatusReasonForbidden && (status.Details == nil || status.Details.Kind == "")
}

func fieldsOf(status metav1.Status) []FieldProblem {
	var fields []FieldProblem
	if status.Details != nil {
		for _, cause := range status.Details.Causes {
			fields = append(fields, FieldProblem{Field: cause.Field, Message: cause.Message})
		}
	}
	if len(fields) == 0 {
		fields = append(fields, FieldProblem{Message: status.Message})
	}
	return fields
}
