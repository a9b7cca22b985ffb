package codec

import (
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"strings"
)

// keySize is the size of a key in bytes.
const keySize = 32

// Keys are the keys by ID, and which one encrypts. Their values show
// themselves nowhere.
type Keys struct {
	current string
	byID    map[string][]byte
}

// String hides the keys.
func (k Keys) String() string { return fmt.Sprintf("%d keys, current %q", len(k.byID), k.current) }

// GoString hides the keys from %#v.
func (k Keys) GoString() string { return k.String() }

// ParseKeys reads keys, one a line, as <ID>:<base64 of 32 bytes>. The first
// one encrypts; all decrypt. Empty lines and lines that start with # are
// passed over.
func ParseKeys(text string) (Keys, error) {
	keys := Keys{byID: map[string][]byte{}}
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		id, encoded, ok := strings.Cut(line, ":")
		if !ok || id == "" {
			return Keys{}, fmt.Errorf("codec keys: line %d is not of the form <ID>:<base64 of %d bytes>", i+1, keySize)
		}
		key, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil || len(key) != keySize {
			return Keys{}, fmt.Errorf("codec keys: the key of line %d (%q) is not the base64 of %d bytes; make one with `openssl rand -base64 32`", i+1, id, keySize)
		}
		if _, twice := keys.byID[id]; twice {
			return Keys{}, fmt.Errorf("codec keys: line %d has the ID %q a second time; give each key its own", i+1, id)
		}
		keys.byID[id] = key
		if keys.current == "" {
			keys.current = id
		}
	}
	if keys.current == "" {
		return Keys{}, errors.New("codec keys: no key found; give one line <ID>:<base64 of 32 bytes>")
	}
	return keys, nil
}

// LoadKeys reads keys from a file.
func LoadKeys(file string) (Keys, error) {
	data, err := os.ReadFile(file) //nolint:gosec // the operator names the file
	if err != nil {
		return Keys{}, fmt.Errorf("codec keys: %w", err)
	}
	return ParseKeys(string(data))
}
