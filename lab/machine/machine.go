package machine

import (
	"maps"
	"net"
	"net/netip"
	"sync"
)

// Hardware is a virtual machine as it is at power-on: what the guest can see.
type Hardware struct {
	Host string // PVE node that runs it
	VMID int
	Name string
	UUID string // SMBIOS type 1 UUID, lower case

	Cores     int
	MemoryMiB int

	NICs  []NIC   // in order of their index
	Disks []*Disk // in boot order
	Media []Medium

	// AgentDevice tells that the virtio serial port of the guest agent exists:
	// agent was enabled in the configuration when the machine was powered on.
	AgentDevice bool
}

// NIC is one virtual network card.
type NIC struct {
	Index    int // N of netN
	Model    string
	MAC      net.HardwareAddr
	Bridge   string
	VLAN     int // 0: untagged
	MTU      int // 0: the bridge's
	LinkDown bool
}

// Disk is a virtual disk with what is on it.
type Disk struct {
	Slot      string // scsi0, virtio0, …
	Volume    string // Proxmox volume ID
	SizeBytes int64
	Content   *Content
}

// Medium is a CD-ROM: a volume label and the files on it. A cloud-init drive
// and an uploaded ISO look the same to the guest.
type Medium struct {
	Slot  string
	Label string // cidata for cloud-init
	Files map[string][]byte
}

// Image is what a template's disk was made from.
type Image struct {
	OS       string // talos, envoy, blank
	Version  string // of the OS, as v1.12.6
	Platform string // of Talos: nocloud or metal
	Agent    bool   // has the QEMU guest agent installed
}

// Content is what is on a disk: the image it was made from, and the files the
// guest wrote. It outlives power cycles and is copied by a clone.
type Content struct {
	Image Image

	mu    sync.Mutex
	files map[string][]byte
}

// NewContent returns the content of a fresh disk made from the image.
func NewContent(image Image) *Content { return &Content{Image: image} }

// Clone returns an independent copy.
func (c *Content) Clone() *Content {
	c.mu.Lock()
	defer c.mu.Unlock()
	return &Content{Image: c.Image, files: maps.Clone(c.files)}
}

// Read returns the file of that name, or false.
func (c *Content) Read(name string) ([]byte, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	data, ok := c.files[name]
	return data, ok
}

// Write puts a file on the disk.
func (c *Content) Write(name string, data []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.files == nil {
		c.files = map[string][]byte{}
	}
	c.files[name] = data
}

// Remove deletes a file from the disk; a missing one is no error.
func (c *Content) Remove(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.files, name)
}

// Interface is a network interface as the guest agent reports it.
type Interface struct {
	Name      string
	MAC       net.HardwareAddr
	Addresses []netip.Prefix
}

// Guest is a machine that is powered on.
type Guest interface {
	// SetLink plugs or pulls the cable of NIC index while the guest runs.
	SetLink(index int, down bool) error
	// SetMedia changes what is in the CD-ROM drives.
	SetMedia(media []Medium)
	// Agent returns what the guest agent reports, and false while no agent
	// answers: none installed, no serial device, or not started.
	Agent() (AgentReport, bool)
	// Shutdown presses the power button; the guest ends by itself, or not.
	Shutdown()
	// Reset is a hard reset: the guest boots again from its disk.
	Reset()
	// Kill cuts the power and returns when nothing of the guest runs.
	Kill()
	// Done is closed when the guest is off.
	Done() <-chan struct{}
}

// AgentReport is what a QEMU guest agent tells.
type AgentReport struct {
	Hostname   string
	OS         string
	Interfaces []Interface
}

// Hypervisor powers machines on.
type Hypervisor interface {
	PowerOn(hardware Hardware) (Guest, error)
}
