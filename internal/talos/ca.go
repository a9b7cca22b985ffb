package talos

import (
	"fmt"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
)

// CA is a tenant's Talos certificate authority. Workers get the certificate as
// the one they trust for the Talos API; the key stays with the platform, so
// that a trust service can be added to running tenants later.
type CA struct {
	Certificate []byte // PEM
	Key         []byte // PEM
}

// String hides the key.
func (c CA) String() string {
	return fmt.Sprintf("Talos CA (%d bytes of certificate)", len(c.Certificate))
}

// GoString hides the key from %#v.
func (c CA) GoString() string { return c.String() }

// NewCA makes a Talos CA that is valid from now for ten years.
func NewCA(now time.Time) (CA, error) {
	ca, err := secrets.NewTalosCA(now)
	if err != nil {
		return CA{}, fmt.Errorf("make talos CA: %w", err)
	}
	return CA{Certificate: ca.CrtPEM, Key: ca.KeyPEM}, nil
}
