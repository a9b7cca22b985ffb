package talos

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/client-go/util/certificate"

	"aether.internal/aether/lab/machine"
	"aether.internal/aether/lab/registry"
)

// What is on the system disk, by partition.
const (
	configFile    = "STATE/config.yaml"
	platformFile  = "BOOT/platform"
	installedFile = "BOOT/installed"
	clientFile    = "EPHEMERAL/lib/kubelet/pki/kubelet-client-current.pem"
	servingFile   = "EPHEMERAL/lib/kubelet/pki/kubelet-server-current.pem"
	imagesFile    = "EPHEMERAL/lib/containerd/images.json"
)

// Wipe does to a disk what a reset to maintenance mode does: the configuration
// and everything that was written since are gone, the installed system stays.
func Wipe(content *machine.Content) {
	for _, name := range []string{configFile, clientFile, servingFile, imagesFile} {
		content.Remove(name)
	}
}

// disk is the system disk with its partitions.
type disk struct {
	content *machine.Content
}

func (d disk) config() ([]byte, bool) { return d.content.Read(configFile) }

func (d disk) setConfig(config []byte) { d.content.Write(configFile, config) }

// platform is that of the image, until an installer of another one wrote the
// disk.
func (d disk) platform() string {
	if installed, ok := d.content.Read(platformFile); ok {
		return string(installed)
	}
	return d.content.Image.Platform
}

// installed: a nocloud disk image is, a metal one boots from a medium first.
func (d disk) installed() bool {
	_, done := d.content.Read(installedFile)
	return done || d.content.Image.Platform == platformNocloud
}

// install writes the platform of an installer image.
func (d disk) install(installer string) {
	platform := platformMetal
	if strings.Contains(installer, "nocloud-installer") {
		platform = platformNocloud
	}
	d.content.Write(platformFile, []byte(platform))
	d.content.Write(installedFile, []byte(installer))
}

// images are those that were pulled; a second start does not pull again.
func (d disk) image(ref string) (*registry.Image, bool) {
	image, ok := d.images()[ref]
	return &image, ok
}

func (d disk) images() map[string]registry.Image {
	images := map[string]registry.Image{}
	if raw, ok := d.content.Read(imagesFile); ok {
		if err := json.Unmarshal(raw, &images); err != nil {
			return map[string]registry.Image{} // a torn write: pull again
		}
	}
	return images
}

func (d disk) addImage(ref string, image *registry.Image) error {
	images := d.images()
	images[ref] = *image
	raw, err := json.Marshal(images)
	if err != nil {
		return fmt.Errorf("write image list: %w", err)
	}
	d.content.Write(imagesFile, raw)
	return nil
}

// pemStore keeps a certificate with its key in one file, as the kubelet does.
type pemStore struct {
	disk disk
	file string
}

var _ certificate.Store = pemStore{}

// Current implements certificate.Store.
func (s pemStore) Current() (*tls.Certificate, error) {
	raw, ok := s.disk.content.Read(s.file)
	if !ok {
		none := certificate.NoCertKeyError("no certificate in " + s.file)
		return nil, &none
	}
	return parsePair(raw)
}

// Update implements certificate.Store.
func (s pemStore) Update(cert, key []byte) (*tls.Certificate, error) {
	raw := slices.Concat(cert, key)
	pair, err := parsePair(raw)
	if err != nil {
		return nil, err
	}
	s.disk.content.Write(s.file, raw)
	return pair, nil
}

func (s pemStore) remove() { s.disk.content.Remove(s.file) }

func parsePair(raw []byte) (*tls.Certificate, error) {
	pair, err := tls.X509KeyPair(raw, raw)
	if err != nil {
		return nil, fmt.Errorf("read certificate and key: %w", err)
	}
	if pair.Leaf == nil {
		if pair.Leaf, err = x509.ParseCertificate(pair.Certificate[0]); err != nil {
			return nil, fmt.Errorf("read certificate: %w", err)
		}
	}
	return &pair, nil
}

// pool reads trusted certificates.
func pool(pemBlocks []byte) (*x509.CertPool, error) {
	p := x509.NewCertPool()
	for rest := pemBlocks; ; {
		block, next := pem.Decode(rest)
		if block == nil {
			break
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("read CA certificate: %w", err)
		}
		p.AddCert(cert)
		rest = next
	}
	if p.Equal(x509.NewCertPool()) {
		return nil, errors.New("missing accepted Kubernetes CAs")
	}
	return p, nil
}
