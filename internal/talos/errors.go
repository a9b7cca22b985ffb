package talos

import (
	"errors"
	"fmt"
	"strings"
)

// The ways a delivery ends other than well. Test with errors.Is.
var (
	// ErrUnreachable: nothing answers at the address. The machine may be
	// booting, off, or cut off: never a reason to make a second one.
	ErrUnreachable = errors.New("machine is not reachable")
	// ErrNotMaintenance: something answers that is not a machine waiting for
	// its configuration.
	ErrNotMaintenance = errors.New("machine is not in maintenance mode")
	// ErrWrongMachine: another machine answers at this address. Nothing was
	// sent to it.
	ErrWrongMachine = errors.New("another machine answers")
	// ErrInvalidConfig: the configuration was refused. Sending it again does
	// not help.
	ErrInvalidConfig = errors.New("configuration is refused")
)

// WrongMachineError says who answered. It is [ErrWrongMachine].
type WrongMachineError struct {
	Address     string
	Found, Want string // SMBIOS UUIDs
}

// Error names both machines.
func (e *WrongMachineError) Error() string {
	return fmt.Sprintf("%s at %s: found SMBIOS UUID %q, needed is %q; look for a second VM with this address, nothing was sent",
		ErrWrongMachine, e.Address, e.Found, e.Want)
}

// Unwrap makes it ErrWrongMachine.
func (e *WrongMachineError) Unwrap() error { return ErrWrongMachine }

// InvalidConfigError holds each reason. It is [ErrInvalidConfig].
type InvalidConfigError struct {
	Messages []string
}

// Error lists the reasons.
func (e *InvalidConfigError) Error() string {
	return ErrInvalidConfig.Error() + ": " + strings.Join(e.Messages, "; ")
}

// Unwrap makes it ErrInvalidConfig.
func (e *InvalidConfigError) Unwrap() error { return ErrInvalidConfig }
