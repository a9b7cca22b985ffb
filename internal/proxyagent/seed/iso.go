package seed

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/iso9660"
)

const (
	isoBlock = 2048
	// isoSize holds the few kilobytes of a medium; what is not used is cut off.
	isoSize = 1 << 20
)

// ISO renders the volume as an ISO 9660 image with Joliet and Rock Ridge names.
func (s Seed) ISO() (image []byte, err error) {
	files, err := s.Files()
	if err != nil {
		return nil, err
	}
	// The library works on files only.
	dir, err := os.MkdirTemp("", "aether-seed-*")
	if err != nil {
		return nil, fmt.Errorf("proxy medium: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	workspace := filepath.Join(dir, "files")
	if err := os.Mkdir(workspace, 0o700); err != nil {
		return nil, fmt.Errorf("proxy medium: %w", err)
	}
	target := filepath.Join(dir, "seed.iso")
	if err := writeISO(target, workspace, files); err != nil {
		return nil, fmt.Errorf("proxy medium: %w", err)
	}
	return os.ReadFile(filepath.Clean(target))
}

func writeISO(target, workspace string, files map[string][]byte) error {
	storage, err := file.CreateFromPath(target, isoSize)
	if err != nil {
		return err
	}
	defer func() { _ = storage.Close() }()
	volume, err := iso9660.Create(storage, 0, 0, isoBlock, workspace)
	if err != nil {
		return err
	}
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if err := writeISOFile(volume, name, files[name]); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return volume.Finalize(iso9660.FinalizeOptions{RockRidge: true, Joliet: true, VolumeIdentifier: Label})
}

func writeISOFile(volume *iso9660.FileSystem, name string, data []byte) error {
	f, err := volume.OpenFile("/"+name, os.O_CREATE|os.O_RDWR)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}
