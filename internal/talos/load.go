package talos

import (
	"fmt"

	coreconfig "github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
)

func load(configuration []byte) (coreconfig.Provider, error) {
	provider, err := configloader.NewFromBytes(configuration)
	if err != nil {
		return nil, fmt.Errorf("read talos configuration: %w", err)
	}
	return provider, nil
}

// cloudMode is the validation mode of the nocloud platform: the disk image is
// already installed, so machine.install is not required.
type cloudMode struct{}

// String is the mode's name in validation messages.
func (cloudMode) String() string { return "cloud" }

// RequiresInstall is false: a nocloud disk image has been installed.
func (cloudMode) RequiresInstall() bool { return false }

// InContainer is false: this is a virtual machine.
func (cloudMode) InContainer() bool { return false }
