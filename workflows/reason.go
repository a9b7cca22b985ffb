package workflows

import (
	"errors"

	"go.temporal.io/sdk/temporal"
)

// Reason returns what a person should read of an error: the innermost
// application message, without Temporal's wrapping. A time-out that ended
// repeated attempts tells the last attempt's failure.
func Reason(err error) string {
	if err == nil {
		return ""
	}
	var application *temporal.ApplicationError
	if errors.As(err, &application) {
		return application.Message()
	}
	var timeout *temporal.TimeoutError
	if errors.As(err, &timeout) {
		if cause := errors.Unwrap(timeout); cause != nil {
			return "gave up after repeated attempts; the last one said: " + Reason(cause)
		}
		return "timed out (" + timeout.TimeoutType().String() + ")"
	}
	if temporal.IsCanceledError(err) {
		return "cancelled"
	}
	return err.Error()
}
