package command

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

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
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return domain.Tenant{}, fmt.Errorf("tenant file: %w", err)
		}
		var head struct {
			Kind string `json:"kind"`
		}
		if err := yaml.Unmarshal(document, &head); err != nil {
			return domain.Tenant{}, fmt.Errorf("tenant file: %w", err)
		}
		switch head.Kind {
		case domain.AetherClusterKind:
		case "Cluster", "Namespace":
			continue
		case "":
			if len(bytes.TrimSpace(document)) == 0 {
				continue
			}
			return domain.Tenant{}, fmt.Errorf("tenant file: kind: found nothing; allowed: %s, and beside it Cluster and Namespace", domain.AetherClusterKind)
		default:
			return domain.Tenant{}, fmt.Errorf("tenant file: kind: found %q; allowed: %s, and beside it Cluster and Namespace", head.Kind, domain.AetherClusterKind)
		}
		if found != nil {
			return domain.Tenant{}, fmt.Errorf("tenant file: found more than one %s; allowed: one a file", domain.AetherClusterKind)
		}
		content, err := yaml.YAMLToJSONStrict(document)
		if err != nil {
			return domain.Tenant{}, fmt.Errorf("tenant file: %w", err)
		}
		tenant, err := domain.ParseTenant(content)
		if err != nil {
			return domain.Tenant{}, err
		}
		found = &tenant
	}
	if found == nil {
		return domain.Tenant{}, fmt.Errorf("tenant file: found no %s; see examples/tenant.yaml", domain.AetherClusterKind)
	}
	return *found, nil
}
