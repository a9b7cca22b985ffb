package talos

import (
	"context"
	"net/netip"
)

// Deliverer brings a configuration to one machine. Maintenance pushes it over
// the network; a medium that the machine boots with would be another one.
type Deliverer interface {
	// Deliver returns when the machine has the configuration, or the reason
	// why it has not. It is safe to call again after any error.
	Deliver(ctx context.Context, target Target, configuration []byte) (Outcome, error)
}

// Target is the machine that a configuration is for.
type Target struct {
	// Address of the maintenance API.
	Address netip.AddrPort
	// UUID is the SMBIOS UUID: the machine's proof that it is the one.
	UUID string
	// MayHaveConfig says that an earlier attempt may have sent the
	// configuration without learning the outcome. A closed port is then a
	// sign of success.
	MayHaveConfig bool
}

// MaintenancePort is where the maintenance API listens.
const MaintenancePort = 50000

// Outcome says what a delivery did.
type Outcome string

// The outcomes of a delivery without error.
const (
	// Applied: the machine accepted the configuration in this call.
	Applied Outcome = "applied"
	// AlreadyApplied: the answer was lost, or an earlier attempt's was; the
	// machine has left maintenance mode since.
	AlreadyApplied Outcome = "already-applied"
)
