package charts

import (
	"embed"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
)

// The all: prefix brings the template helpers in, whose names begin with _.
//
//go:embed all:cilium
var files embed.FS

// Cilium loads the lab's chart.
func Cilium() (*chart.Chart, error) {
	var buffered []*loader.BufferedFile
	err := walk(func(name string, data []byte) error {
		buffered = append(buffered, &loader.BufferedFile{Name: name, Data: data})
		return nil
	})
	if err != nil {
		return nil, err
	}
	loaded, err := loader.LoadFiles(buffered)
	if err != nil {
		return nil, fmt.Errorf("load cilium chart: %w", err)
	}
	return loaded, nil
}

// WriteCilium writes the chart into a folder named cilium below dir, for a site
// file that names a chart by its path, and returns that folder.
func WriteCilium(dir string) (string, error) {
	target := filepath.Join(dir, "cilium")
	err := walk(func(name string, data []byte) error {
		path := filepath.Join(target, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		return os.WriteFile(path, data, 0o644) //nolint:gosec // a chart is no secret
	})
	if err != nil {
		return "", err
	}
	return target, nil
}

// walk calls visit for each file, with its name relative to the chart.
func walk(visit func(name string, data []byte) error) error {
	err := fs.WalkDir(files, "cilium", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := files.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel("cilium", path)
		if err != nil {
			return err
		}
		return visit(name, data)
	})
	if err != nil {
		return fmt.Errorf("read cilium chart: %w", err)
	}
	return nil
}
