package envoyvm

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"aether.internal/aether/lab/machine"
)

// Where cloud-init keeps things on the disk.
const (
	instanceFile = "var/lib/cloud/data/instance-id"
	userDataFile = "var/lib/cloud/instance/user-data.txt"
	networkFile  = "etc/netplan/50-cloud-init.yaml"
	hostnameFile = "etc/hostname"
	defaultName  = "debian"
)

// metaData is the part of meta-data that matters.
type metaData struct {
	InstanceID    string `json:"instance-id"`
	LocalHostname string `json:"local-hostname"`
}

// cloudConfig is the part of #cloud-config that matters.
type cloudConfig struct {
	Hostname   string      `json:"hostname"`
	WriteFiles []writeFile `json:"write_files"`
}

type writeFile struct {
	Path        string `json:"path"`
	Content     string `json:"content"`
	Encoding    string `json:"encoding"`
	Permissions string `json:"permissions"`
}

// cloudInit does what is due at this boot and says on the console what it did.
func (b *boot) cloudInit() error {
	medium, found := findMedium(b.m.Media())
	if !found {
		b.say("cloud-init: no datasource, disabled")
		return nil
	}
	var meta metaData
	if err := yaml.Unmarshal(medium.Files["meta-data"], &meta); err != nil {
		return fmt.Errorf("cloud-init: meta-data: %w", err)
	}
	if meta.InstanceID == "" {
		return errors.New("cloud-init: meta-data: no instance-id")
	}
	if known, err := b.disk.read(instanceFile); err == nil && string(known) == meta.InstanceID {
		b.say("cloud-init: instance %s, booted before", meta.InstanceID)
		return nil
	}
	b.say("cloud-init: instance %s, first boot", meta.InstanceID)
	if network := medium.Files["network-config"]; len(network) > 0 {
		if err := b.disk.write(networkFile, network, 0o600); err != nil {
			return err
		}
	}
	if err := b.userData(medium.Files["user-data"], meta.LocalHostname); err != nil {
		return err
	}
	return b.disk.write(instanceFile, []byte(meta.InstanceID), 0o600)
}

// findMedium looks for the volume by its label, in either case.
func findMedium(media []machine.Medium) (machine.Medium, bool) {
	for _, medium := range media {
		if strings.EqualFold(medium.Label, "cidata") {
			return medium, true
		}
	}
	return machine.Medium{}, false
}

func (b *boot) userData(data []byte, hostname string) error {
	if err := b.disk.write(userDataFile, data, 0o600); err != nil {
		return err
	}
	var config cloudConfig
	if bytes.HasPrefix(data, []byte("#cloud-config")) {
		if err := yaml.Unmarshal(data, &config); err != nil {
			// As the real one: the boot goes on without it.
			b.say("cloud-init: user-data: failed loading yaml: %v", err)
			return nil
		}
	} else if len(bytes.TrimSpace(data)) > 0 {
		b.say("cloud-init: user-data: not #cloud-config, skipped")
	}
	if config.Hostname != "" {
		hostname = config.Hostname
	}
	if hostname != "" {
		if err := b.disk.write(hostnameFile, []byte(hostname+"\n"), 0o644); err != nil {
			return err
		}
	}
	for _, file := range config.WriteFiles {
		if err := b.writeFile(file); err != nil {
			b.say("cloud-init: write_files: %s: %v", file.Path, err)
		}
	}
	return nil
}

func (b *boot) writeFile(file writeFile) error {
	if !path.IsAbs(file.Path) {
		return errors.New("path is not absolute")
	}
	content := []byte(file.Content)
	switch file.Encoding {
	case "", "text/plain":
	case "b64", "base64":
		var err error
		if content, err = base64.StdEncoding.DecodeString(file.Content); err != nil {
			return err
		}
	default:
		return fmt.Errorf("encoding %q is not supported", file.Encoding)
	}
	mode := fs.FileMode(0o644)
	if file.Permissions != "" {
		bits, err := strconv.ParseUint(file.Permissions, 8, 32)
		if err != nil {
			return fmt.Errorf("permissions: %w", err)
		}
		mode = fs.FileMode(bits) & fs.ModePerm
	}
	b.say("cloud-init: write_files: %s", file.Path)
	return b.disk.write(strings.TrimPrefix(path.Clean(file.Path), "/"), content, mode)
}
