package registry

import (
	"archive/tar"
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Labels of an image's configuration that say what the lab runs for it.
const (
	LabelProgram  = "org.aether.lab.program"
	LabelCommands = "org.aether.lab.commands"
	LabelSize     = "org.aether.lab.size"
)

// Image is a pulled image.
type Image struct {
	Ref        string   // as it was asked for, with registry and tag
	Digest     string   // sha256:… of what the reference names, usually an index
	Repository string   // without tag or digest: what an image ID begins with
	Program    string   // key of the world's table of programs
	Commands   []string // what the image holds in its PATH
	Entrypoint []string
	Cmd        []string
	Env        []string
	SizeBytes  int64 // compressed size of the real image, not of the lab's
	Version    string
}

// Definition describes an image of the catalogue.
type Definition struct {
	Ref        string // registry/repository:tag
	Program    string
	Commands   []string
	Entrypoint []string
	Cmd        []string
	Env        []string
	SizeMiB    int
}

// Reference parses an image reference the way a container runtime does:
// docker.io and library/ are filled in.
func Reference(ref string) (name.Reference, error) {
	parsed, err := name.ParseReference(ref, name.WithDefaultRegistry("docker.io"))
	if err != nil {
		return nil, fmt.Errorf("image %q: %w", ref, err)
	}
	return parsed, nil
}

// host returns the registry of a reference by the name that people, mirrors
// and image IDs use.
func host(ref name.Reference) string {
	if registry := ref.Context().RegistryStr(); registry != name.DefaultRegistry {
		return registry
	}
	return "docker.io"
}

// repository returns registry and path of a reference.
func repository(ref name.Reference) string {
	return host(ref) + "/" + repositoryPath(ref)
}

// repositoryPath returns the path in the registry, with library/ for Docker
// Hub's own images: that rule is the client's.
func repositoryPath(ref name.Reference) string {
	path := ref.Context().RepositoryStr()
	if host(ref) == "docker.io" && !strings.Contains(path, "/") {
		return "library/" + path
	}
	return path
}

// canonical writes a reference out in full.
func canonical(ref name.Reference) string {
	if _, byDigest := ref.(name.Digest); byDigest {
		return repository(ref) + "@" + ref.Identifier()
	}
	return repository(ref) + ":" + ref.Identifier()
}

// build makes the index and the linux/amd64 image of a definition. The result
// depends on the definition only, so that digests are the same in every run.
func build(d Definition) (v1.ImageIndex, v1.Image, error) {
	layer, err := layerOf(d)
	if err != nil {
		return nil, nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err = mutate.AppendLayers(image, layer)
	if err != nil {
		return nil, nil, fmt.Errorf("image %s: %w", d.Ref, err)
	}
	image, err = mutate.ConfigFile(image, configOf(d, image))
	if err != nil {
		return nil, nil, fmt.Errorf("image %s: %w", d.Ref, err)
	}
	index := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex), mutate.IndexAddendum{
		Add:        image,
		Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "amd64"}},
	})
	return index, image, nil
}

func configOf(d Definition, image v1.Image) *v1.ConfigFile {
	config := &v1.ConfigFile{
		OS: "linux", Architecture: "amd64",
		Config: v1.Config{
			Entrypoint: d.Entrypoint, Cmd: d.Cmd, Env: d.Env,
			Labels: map[string]string{
				LabelProgram:                       d.Program,
				LabelCommands:                      strings.Join(d.Commands, ","),
				LabelSize:                          strconv.Itoa(d.SizeMiB << 20),
				"org.opencontainers.image.version": tagOf(d.Ref),
			},
		},
	}
	if base, err := image.ConfigFile(); err == nil {
		config.RootFS = base.RootFS
	}
	return config
}

// layerOf is a tar with one file that names the image, so that no two images
// share their layer.
func layerOf(d Definition) (v1.Layer, error) {
	var buffer bytes.Buffer
	archive := tar.NewWriter(&buffer)
	content := []byte(d.Ref + "\n")
	header := &tar.Header{Name: "etc/image", Mode: 0o644, Size: int64(len(content)), ModTime: time.Unix(0, 0)}
	if err := archive.WriteHeader(header); err != nil {
		return nil, fmt.Errorf("layer of %s: %w", d.Ref, err)
	}
	if _, err := archive.Write(content); err != nil {
		return nil, fmt.Errorf("layer of %s: %w", d.Ref, err)
	}
	if err := archive.Close(); err != nil {
		return nil, fmt.Errorf("layer of %s: %w", d.Ref, err)
	}
	return static.NewLayer(buffer.Bytes(), types.OCIUncompressedLayer), nil
}

func tagOf(ref string) string {
	if at := strings.LastIndexByte(ref, ':'); at > strings.LastIndexByte(ref, '/') {
		return ref[at+1:]
	}
	return "latest"
}

// Digest returns the digest that a definition's image has in every lab.
func (d Definition) Digest() (string, error) {
	index, _, err := build(d)
	if err != nil {
		return "", err
	}
	digest, err := index.Digest()
	if err != nil {
		return "", fmt.Errorf("image %s: %w", d.Ref, err)
	}
	return digest.String(), nil
}

// imageFrom reads the labels of a pulled configuration.
func imageFrom(ref name.Reference, digest string, config *v1.ConfigFile) *Image {
	labels := config.Config.Labels
	size, err := strconv.ParseInt(labels[LabelSize], 10, 64)
	if err != nil {
		size = 0 // an image that is not the lab's has no such label
	}
	image := &Image{
		Ref: canonical(ref), Digest: digest, Repository: repository(ref),
		Program: labels[LabelProgram], Entrypoint: config.Config.Entrypoint, Cmd: config.Config.Cmd,
		Env: config.Config.Env, SizeBytes: size, Version: labels["org.opencontainers.image.version"],
	}
	if commands := labels[LabelCommands]; commands != "" {
		image.Commands = strings.Split(commands, ",")
	}
	return image
}
