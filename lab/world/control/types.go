package control

import (
	"context"
	"os"
	"time"

	"aether.internal/aether/lab/faults"
)

// State is that of a component.
type State string

// The states of a component.
const (
	Running State = "running"
	// Killed: on purpose, and not yet started again.
	Killed State = "killed"
)

// Component is a part of the lab that runs.
type Component struct {
	Name          string `json:"name"`
	State         State  `json:"state"`
	Address       string `json:"address,omitempty"`
	PID           int    `json:"pid,omitempty"`
	ResidentBytes int64  `json:"residentBytes,omitempty"`
	// CPU is the processor time that the process has used.
	CPU        time.Duration `json:"cpu,omitempty"`
	Since      time.Time     `json:"since"`
	ReadyAfter time.Duration `json:"readyAfter"`
	Log        string        `json:"log"`
}

// Status is the whole lab.
type Status struct {
	Ready      bool              `json:"ready"`
	Speed      float64           `json:"speed"`
	Started    time.Time         `json:"started"`
	Components []Component       `json:"components"`
	Addresses  map[string]string `json:"addresses"` // of the machine's loopback
	Kubeconfig string            `json:"kubeconfig"`
	Site       string            `json:"site"`
	Logs       string            `json:"logs"`
}

// Component returns the one of that name.
func (s Status) Component(name string) (Component, bool) {
	for _, c := range s.Components {
		if c.Name == name {
			return c, true
		}
	}
	return Component{}, false
}

// Secret is a value that the lab issued and that must occur nowhere.
type Secret struct {
	Name  string `json:"name"` // what it is, for people
	Value string `json:"value"`
}

// FloorRequest asks for the least time something can take.
type FloorRequest struct {
	Workers int `json:"workers"`
	Hosts   int `json:"hosts"`
	// Tenant adds the proxy and the control plane of a new tenant.
	Tenant bool `json:"tenant"`
}

// Floor is the answer.
type Floor struct {
	Seconds float64     `json:"seconds"`
	Steps   []FloorStep `json:"steps"`
}

// FloorStep is one stretch of the longest way.
type FloorStep struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
}

// Command is a program to run inside the lab.
type Command struct {
	Args []string `json:"args"`
	Dir  string   `json:"dir,omitempty"`
	Env  []string `json:"env,omitempty"`
}

// World is what the Server answers for.
type World interface {
	Status() Status
	Faults() *faults.Set
	Secrets(ctx context.Context) ([]Secret, error)
	Kill(name string) error
	Restart(ctx context.Context, name string) error
	SetHost(name string, on bool) error
	Floor(r FloorRequest) (Floor, error)
	// Exec runs a command in the platform's network with the given standard
	// files, and returns its exit code.
	Exec(ctx context.Context, c Command, stdio [3]*os.File) (int, error)
	// Shutdown begins the end and returns at once.
	Shutdown()
}
