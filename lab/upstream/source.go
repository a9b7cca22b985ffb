package upstream

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// modulePath is the module this package belongs to.
const modulePath = "aether.internal/aether"

// findCheckout looks for the root of Aether's checkout at and above each of
// the folders: the working directory of a test is its package, that of the lab
// anywhere, and a program lies in the checkout's build folder.
func findCheckout(from ...string) (string, error) {
	for _, start := range from {
		for dir := start; ; dir = filepath.Dir(dir) {
			is, err := isModule(filepath.Join(dir, "go.mod"))
			if err != nil {
				return "", err
			}
			if is {
				return dir, nil
			}
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	return "", fmt.Errorf("no checkout of %s at or above %s: run from the checkout, or name it by AETHER_SOURCE",
		modulePath, strings.Join(from, " or "))
}

// isModule tells whether a go.mod is that of this module.
func isModule(gomod string) (bool, error) {
	data, err := os.ReadFile(gomod)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) >= 2 && fields[0] == "module" {
			return strings.Trim(fields[1], `"`) == modulePath, nil
		}
	}
	return false, nil
}
