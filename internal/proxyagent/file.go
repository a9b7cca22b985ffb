package proxyagent

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// replaceFile puts a file in place by rename and returns whether it differed.
// Envoy takes notice of a rename only, and a power cut leaves the old file or
// the new one: the data is on disk before the name points to it.
func replaceFile(file string, data []byte, mode fs.FileMode) (bool, error) {
	old, err := os.ReadFile(filepath.Clean(file))
	if err == nil && bytes.Equal(old, data) {
		return false, nil
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return false, fmt.Errorf("write %s: %w", file, err)
	}
	temp, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+".*")
	if err != nil {
		return false, fmt.Errorf("write %s: %w", file, err)
	}
	err = fill(temp, data, mode)
	if err == nil {
		err = os.Rename(temp.Name(), file)
	}
	if err != nil {
		return false, errors.Join(fmt.Errorf("write %s: %w", file, err), os.Remove(temp.Name()))
	}
	return true, syncDir(filepath.Dir(file))
}

func fill(file *os.File, data []byte, mode fs.FileMode) error {
	_, err := file.Write(data)
	if err == nil {
		err = file.Chmod(mode)
	}
	if err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

// removeFile deletes a file, which may be missing, for good.
func removeFile(file string) error {
	err := os.Remove(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("delete %s: %w", file, err)
	}
	return syncDir(filepath.Dir(file))
}

func syncDir(name string) error {
	dir, err := os.Open(filepath.Clean(name))
	if err != nil {
		return fmt.Errorf("sync %s: %w", name, err)
	}
	return errors.Join(dir.Sync(), dir.Close())
}
