package command

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"aether.internal/aether/internal/domain"
)

// mostBytes is more than any honest tenant file has.
const mostBytes = 1 << 20

// readTenant reads a tenant file: YAML or JSON with one AetherCluster; a
// Namespace and a Cluster beside it are for kubectl and are passed over, since
// the workflow writes them itself. - is standard input.
func readTenant(s streams, name string) (domain.Tenant, error) {
	data, err := readFile(s, name)
	if err != nil {
		return domain.Tenant{}, fmt.Errorf("--file: %w", err)
	}
	return parseTenant(data)
}

func readFile(s streams, name string) ([]byte, error) {
	if name == "" {
		return nil, errors.New("found nothing; give a tenant file, as examples/tenant.yaml, or - for standard input")
	}
	reader := s.in
	if name != "-" {
		file, err := os.Open(name) //nolint:gosec // the person names the file
		if err != nil {
			return nil, err
		}
		defer file.Close() //nolint:errcheck // only read
		reader = file
	}
	data, err := io.ReadAll(io.LimitReader(reader, mostBytes+1))
	if err != nil {
		return nil, err
	}
	if len(data) > mostBytes {
		return nil, errors.New("found more than 1 MiB; allowed: one tenant")
	}
	return data, nil
}

// parseTenant finds the one AetherCluster in a stream of documents.
func parseTenant(data []byte) (domain.Tenant, error) {
	var found *domain.Tenant
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for number := 1; ; number++ {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return domain.Tenant{}, fmt.Errorf("tenant file: %w", err)
		}
		content, wanted, err := readDocument(document)
		if err != nil {
			return domain.Tenant{}, fmt.Errorf("tenant file: document %d: %w", number, err)
		}
		if !wanted {
			continue
		}
		if found != nil {
			return domain.Tenant{}, fmt.Errorf("tenant file: document %d: found another %s; allowed: one in a file", number, domain.AetherClusterKind)
		}
		tenant, err := domain.ParseTenant(content)
		if err != nil {
			return domain.Tenant{}, fmt.Errorf("tenant file: %w", err)
		}
		found = &tenant
	}
	if found == nil {
		return domain.Tenant{}, fmt.Errorf("tenant file: found no %s; see examples/tenant.yaml", domain.AetherClusterKind)
	}
	return *found, nil
}

// notYAML tells what the parser said, cut short: it has a line for each of a
// file's mistakes.
func notYAML(cause error) error {
	const most = 400
	text := cause.Error()
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return errors.New("it is not YAML: " + text)
}

// readDocument turns one document into JSON and tells whether it is the
// tenant, and not one of its companions or empty.
func readDocument(document []byte) (content []byte, wanted bool, err error) {
	content, err = yaml.YAMLToJSONStrict(document)
	if err != nil {
		return nil, false, notYAML(err)
	}
	var value any
	if err := json.Unmarshal(content, &value); err != nil {
		return nil, false, notYAML(err)
	}
	if value == nil {
		return nil, false, nil // comments alone
	}
	members, ok := value.(map[string]any)
	if !ok {
		return nil, false, errors.New("found something that is no mapping; allowed: an object with apiVersion, kind, metadata and spec")
	}
	switch kind := members["kind"]; kind {
	case domain.AetherClusterKind:
		return content, true, nil
	case "Cluster", "Namespace":
		return nil, false, nil
	case nil, "":
		return nil, false, fmt.Errorf("kind: found nothing; allowed: %s, and beside it Cluster and Namespace", domain.AetherClusterKind)
	default:
		return nil, false, fmt.Errorf("kind: found %s; allowed: %s, and beside it Cluster and Namespace", domain.Shown(kind), domain.AetherClusterKind)
	}
}
