package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// CAPIManifests are the files Cluster API core is installed with.
type CAPIManifests struct {
	// CRDs is the folder of its CustomResourceDefinitions, without conversion.
	CRDs string
	// Webhooks is the file of its webhook configurations, which name a Service.
	Webhooks string
	// RBAC is the folder of its roles and bindings.
	RBAC string
}

// EnsureCAPIManifests copies the manifests of Cluster API core, of the same
// version as the program CAPI, from its module into the cache.
func EnsureCAPIManifests(ctx context.Context) (CAPIManifests, error) {
	b, err := FromEnvironment(os.Getenv)
	if err != nil {
		return CAPIManifests{}, err
	}
	return b.CAPIManifests(ctx)
}

// CAPIManifests copies the manifests of Cluster API core into the cache.
func (b *Builder) CAPIManifests(ctx context.Context) (CAPIManifests, error) {
	const module = "sigs.k8s.io/cluster-api"
	dir, err := b.moduleDir("capi")
	if err != nil {
		return CAPIManifests{}, err
	}
	version, err := requiredVersion(filepath.Join(dir, "go.mod"), module)
	if err != nil {
		return CAPIManifests{}, err
	}
	target := filepath.Join(b.Cache, "capi-manifests-"+version)
	if _, err := os.Stat(target); err == nil {
		return capiManifestsIn(target), nil
	}
	out, err := b.goTool(ctx, dir, "mod", "download", "-json", module)
	if err != nil {
		return CAPIManifests{}, err
	}
	var info struct{ Dir string }
	if err := json.Unmarshal([]byte(out), &info); err != nil {
		return CAPIManifests{}, fmt.Errorf("where is module %s: %w", module, err)
	}
	if err := os.MkdirAll(b.Cache, 0o755); err != nil {
		return CAPIManifests{}, err
	}
	temporary, err := os.MkdirTemp(b.Cache, "capi-manifests-*.new")
	if err != nil {
		return CAPIManifests{}, err
	}
	defer func() { _ = os.RemoveAll(temporary) }() // gone already when it was renamed
	from := filepath.Join(info.Dir, "config")
	for _, part := range []string{"crd/bases", "webhook", "rbac"} {
		if err := os.CopyFS(filepath.Join(temporary, part), os.DirFS(filepath.Join(from, part))); err != nil {
			return CAPIManifests{}, fmt.Errorf("copy manifests of %s: %w", module, err)
		}
	}
	if err := os.Chmod(temporary, 0o755); err != nil {
		return CAPIManifests{}, err
	}
	// Another process may have been faster with the same content.
	if err := os.Rename(temporary, target); err != nil && !errors.Is(err, fs.ErrExist) {
		if _, missing := os.Stat(target); missing != nil {
			return CAPIManifests{}, err
		}
	}
	return capiManifestsIn(target), nil
}

func capiManifestsIn(dir string) CAPIManifests {
	return CAPIManifests{
		CRDs:     filepath.Join(dir, "crd", "bases"),
		Webhooks: filepath.Join(dir, "webhook", "manifests.yaml"),
		RBAC:     filepath.Join(dir, "rbac"),
	}
}
