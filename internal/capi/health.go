package capi

import (
	"errors"
	"fmt"
	"net/http"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
)

var errNotSynced = errors.New("caches are not synced")

// addChecks serves /healthz, and /readyz once the caches are synced.
func addChecks(manager ctrl.Manager) error {
	if err := manager.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return fmt.Errorf("add health check: %w", err)
	}
	err := manager.AddReadyzCheck("caches", func(r *http.Request) error {
		if !manager.GetCache().WaitForCacheSync(r.Context()) {
			return errNotSynced
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("add readiness check: %w", err)
	}
	return nil
}
