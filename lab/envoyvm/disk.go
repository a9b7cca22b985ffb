package envoyvm

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"aether.internal/aether/lab/machine"
)

// contentName is the disk's file that holds what the system wrote. What the
// disk was made from is not in it.
const contentName = "written.tar"

// disk is the machine's root file system: a directory while it runs, kept in
// the disk's content from one boot to the next.
type disk struct {
	content *machine.Content
	dir     string
}

// openDisk unpacks what was written before into an empty directory.
func openDisk(content *machine.Content, dir string) (*disk, error) {
	d := &disk{content: content, dir: dir}
	if err := os.RemoveAll(dir); err != nil {
		return nil, fmt.Errorf("open disk: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open disk: %w", err)
	}
	data, found := content.Read(contentName)
	if !found {
		return d, nil
	}
	archive := tar.NewReader(bytes.NewReader(data))
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return d, nil
		}
		if err != nil {
			return nil, fmt.Errorf("open disk: %w", err)
		}
		file, err := io.ReadAll(archive)
		if err != nil {
			return nil, fmt.Errorf("open disk: %w", err)
		}
		if err := d.write(header.Name, file, header.FileInfo().Mode().Perm()); err != nil {
			return nil, err
		}
	}
}

func (d *disk) path(name string) string { return filepath.Join(d.dir, filepath.FromSlash(name)) }

func (d *disk) read(name string) ([]byte, error) { return os.ReadFile(d.path(name)) }

func (d *disk) exists(name string) bool {
	_, err := os.Stat(d.path(name))
	return err == nil
}

func (d *disk) write(name string, data []byte, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(d.path(name)), 0o755); err != nil {
		return fmt.Errorf("write disk: %w", err)
	}
	if err := os.WriteFile(d.path(name), data, mode); err != nil {
		return fmt.Errorf("write disk: %w", err)
	}
	return nil
}

// close packs the files into the disk's content. A file that vanishes
// meanwhile, such as a temporary one, is left out.
func (d *disk) close() error {
	var buffer bytes.Buffer
	archive := tar.NewWriter(&buffer)
	err := filepath.WalkDir(d.dir, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		return d.pack(archive, name)
	})
	if err = errors.Join(err, archive.Close()); err != nil {
		return fmt.Errorf("close disk: %w", err)
	}
	d.content.Write(contentName, buffer.Bytes())
	return nil
}

func (d *disk) pack(archive *tar.Writer, name string) error {
	info, err := os.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	data, err := os.ReadFile(filepath.Clean(name))
	if err != nil {
		return err
	}
	relative, err := filepath.Rel(d.dir, name)
	if err != nil {
		return err
	}
	header := &tar.Header{Name: filepath.ToSlash(relative), Mode: int64(info.Mode().Perm()), Size: int64(len(data)), Typeflag: tar.TypeReg}
	if err := archive.WriteHeader(header); err != nil {
		return err
	}
	_, err = archive.Write(data)
	return err
}
