package media

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"time"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/iso9660"
)

// ErrNotISO says that data is not an ISO 9660 image.
var ErrNotISO = errors.New("file is not an ISO 9660 image")

// Disc is an ISO image taken apart.
type Disc struct {
	Label string
	Files map[string][]byte // path without a leading slash
}

const (
	sector      = 2048
	descriptors = 16 * sector // the system area comes before
	maxDepth    = 8           // of ISO 9660
)

// ParseISO reads an ISO 9660 image. Names come from Rock Ridge or Joliet where
// the image has them.
func ParseISO(data []byte) (disc *Disc, err error) {
	if len(data) < descriptors+2*sector || data[descriptors] != 1 || string(data[descriptors+1:descriptors+6]) != "CD001" {
		return nil, ErrNotISO
	}
	// The library indexes into tables that a damaged image describes wrongly.
	defer func() {
		if p := recover(); p != nil {
			disc, err = nil, fmt.Errorf("%w: %v", ErrNotISO, p)
		}
	}()
	image, err := iso9660.Read(file.New(&memory{Reader: bytes.NewReader(data), size: int64(len(data))}, true), int64(len(data)), 0, sector)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotISO, err)
	}
	disc = &Disc{Label: strings.TrimRight(image.Label(), " \x00"), Files: map[string][]byte{}}
	if err := disc.collect(image, "/", 0); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotISO, err)
	}
	return disc, nil
}

func (d *Disc) collect(image *iso9660.FileSystem, dir string, depth int) error {
	entries, err := image.ReadDir(dirArgument(dir))
	if err != nil {
		return fmt.Errorf("read directory %s: %w", dir, err)
	}
	for _, entry := range entries {
		name := path.Join(dir, entry.Name())
		if entry.IsDir() {
			if depth == maxDepth {
				return fmt.Errorf("directory %s is too deep", name)
			}
			if err := d.collect(image, name, depth+1); err != nil {
				return err
			}
			continue
		}
		data, err := image.ReadFile(strings.TrimPrefix(name, "/"))
		if err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
		d.Files[strings.TrimPrefix(name, "/")] = data
	}
	return nil
}

// dirArgument gives the library the root as "." as io/fs wants it.
func dirArgument(dir string) string {
	if dir == "/" {
		return "."
	}
	return strings.TrimPrefix(dir, "/")
}

// memory is an image in memory as the library's fs.File.
type memory struct {
	*bytes.Reader
	size int64
}

var _ io.ReaderAt = (*memory)(nil)

// Close implements fs.File.
func (m *memory) Close() error { return nil }

// Stat implements fs.File.
func (m *memory) Stat() (fs.FileInfo, error) { return info{m.size}, nil }

// info is the fs.FileInfo of an image, of which only the size matters.
type info struct{ size int64 }

// Name implements fs.FileInfo.
func (i info) Name() string { return "image" }

// Size implements fs.FileInfo.
func (i info) Size() int64 { return i.size }

// Mode implements fs.FileInfo.
func (info) Mode() fs.FileMode { return 0o444 }

// ModTime implements fs.FileInfo.
func (info) ModTime() time.Time { return time.Time{} }

// IsDir implements fs.FileInfo.
func (info) IsDir() bool { return false }

// Sys implements fs.FileInfo.
func (info) Sys() any { return nil }
