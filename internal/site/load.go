package site

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"

	"sigs.k8s.io/yaml"
)

// mostBytes is more than any honest site file has.
const mostBytes = 1 << 20

// Load reads a site file, checks it, and reads the certificate and
// known-hosts files it names. File names in the result are absolute. Secrets
// are not read.
func Load(path string) (*Site, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read site file: %w; give the path of a file of kind Site, such as examples/site.yaml", err)
	}
	if info.IsDir() || info.Size() > mostBytes {
		return nil, fmt.Errorf("read site file %s: it is a folder or larger than 1 MiB; give the path of a file of kind Site", path)
	}
	data, err := os.ReadFile(path) //nolint:gosec // the operator names the file
	if err != nil {
		return nil, fmt.Errorf("read site file: %w", err)
	}
	s, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	folder, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("find the folder of %s: %w", path, err)
	}
	if err := s.resolve(folder); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

// Parse decodes a site document in YAML or JSON, fills in defaults and checks
// it. It reads no other file. The error is [Problems] when the document
// could be read at all.
func Parse(data []byte) (*Site, error) {
	if len(data) > mostBytes {
		return nil, fmt.Errorf("site file: found %d bytes; allowed: at most %d", len(data), mostBytes)
	}
	if severalDocuments(data) {
		return nil, errors.New("site file: found more than one document; allowed: one of kind Site; remove what follows the line \"---\"")
	}
	asJSON, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return nil, fmt.Errorf("site file: it is not YAML: %w", err)
	}
	decoder := json.NewDecoder(bytes.NewReader(asJSON))
	decoder.UseNumber()
	var document any
	if err := decoder.Decode(&document); err != nil {
		return nil, fmt.Errorf("site file: it is not YAML: %w", err)
	}
	if document == nil {
		return nil, Problems{{Field: "(document)", Found: "nothing", Allowed: "a document of kind Site", Do: "start from examples/site.yaml"}}
	}
	var r report
	r.walk("", document, reflect.TypeFor[Site]())
	if err := r.err(); err != nil {
		return nil, err
	}
	var s Site
	if err := json.Unmarshal(asJSON, &s); err != nil {
		return nil, fmt.Errorf("site file: %w", err)
	}
	s.fillDefaults()
	if err := s.Validate(); err != nil {
		return nil, err
	}
	return &s, nil
}

// severalDocuments tells whether the data holds more than one YAML document.
func severalDocuments(data []byte) bool {
	starts := regexp.MustCompile(`(?m)^---(\s|$)`).FindAllIndex(data, -1)
	if len(starts) == 0 {
		return false
	}
	before := bytes.TrimSpace(withoutComments(data[:starts[0][0]]))
	return len(starts) > 1 || len(before) > 0
}

// withoutComments drops lines that are comments.
func withoutComments(data []byte) []byte {
	var kept [][]byte
	for line := range bytes.Lines(data) {
		if !bytes.HasPrefix(bytes.TrimSpace(line), []byte("#")) {
			kept = append(kept, line)
		}
	}
	return bytes.Join(kept, nil)
}

// fillDefaults writes what the operator left out.
func (s *Site) fillDefaults() {
	spec := &s.Spec
	for i := range spec.Proxmox {
		cluster := &spec.Proxmox[i]
		if cluster.SSH != nil {
			orInt(&cluster.SSH.Port, 22)
		}
		for j := range cluster.Hosts {
			host := &cluster.Hosts[j]
			orInt(&host.VCPUsPerCore, 4)
			orInt(&host.Storage.CloneSlots, 2)
			if host.Storage.CloneMode == "" {
				host.Storage.CloneMode = LinkedClone
			}
		}
	}
	for i := range spec.Networks {
		orInt(&spec.Networks[i].MTU, 1500)
	}
	orInt(&spec.ProxyClass.Cores, 2)
	orInt(&spec.ProxyClass.MemoryMiB, 1024)
	orText(&spec.Images.Kubelet, "ghcr.io/siderolabs/kubelet")
	orText(&spec.Images.Installer, "ghcr.io/siderolabs/installer")
	orText(&spec.Images.Probe, "registry.k8s.io/e2e-test-images/agnhost:2.53")
	orText(&spec.Images.ControlPlane, "registry.k8s.io")
	orText(&spec.Images.CoreDNS, "registry.k8s.io/coredns")
	orText(&spec.Images.KonnectivityServer, "registry.k8s.io/kas-network-proxy/proxy-server")
	orText(&spec.Images.KonnectivityAgent, "registry.k8s.io/kas-network-proxy/proxy-agent")
	orText(&spec.Defaults.DNSDomain, "cluster.local")
}

func orInt(field *int, value int) {
	if *field == 0 {
		*field = value
	}
}

func orText(field *string, value string) {
	if *field == "" {
		*field = value
	}
}

// resolve makes file names absolute and reads the files that are no secrets.
func (s *Site) resolve(folder string) error {
	var r report
	absolute := func(name *string) {
		if *name != "" && !filepath.IsAbs(*name) {
			*name = filepath.Join(folder, *name)
		}
	}
	certificates := func(field string, c *Certificates) {
		if c == nil || c.File == "" {
			return
		}
		absolute(&c.File)
		if text, ok := r.read(field+".file", c.File); ok {
			c.PEM = text
			r.checkPEM(field+".file", text)
		}
	}
	for i := range s.Spec.Proxmox {
		cluster, field := &s.Spec.Proxmox[i], fmt.Sprintf("spec.proxmox[%d]", i)
		absolute(&cluster.Token.File)
		certificates(field+".tls.ca", cluster.TLS.CA)
		if cluster.SSH == nil {
			continue
		}
		absolute(&cluster.SSH.Key.File)
		absolute(&cluster.SSH.KnownHostsFile)
		if name := cluster.SSH.KnownHostsFile; name != "" {
			if text, ok := r.read(field+".ssh.knownHostsFile", name); ok {
				cluster.SSH.KnownHosts = strings.Split(strings.TrimSpace(text), "\n")
			}
		}
	}
	for i := range s.Spec.Mirrors {
		for j := range s.Spec.Mirrors[i].Endpoints {
			certificates(fmt.Sprintf("spec.mirrors[%d].endpoints[%d].ca", i, j), s.Spec.Mirrors[i].Endpoints[j].CA)
		}
	}
	for i := range s.Spec.TrustedRoots {
		certificates(fmt.Sprintf("spec.trustedRoots[%d]", i), &s.Spec.TrustedRoots[i])
	}
	absolute(&s.Spec.Charts.Cilium.Path)
	return r.err()
}

// read returns the text of a file the document names.
func (r *report) read(field, name string) (string, bool) {
	data, err := os.ReadFile(name) //nolint:gosec // the operator names the file
	if err != nil {
		r.add(field, shown(name)+", which cannot be read ("+reason(err)+")", "a readable file", "give the right name, relative to the site file")
		return "", false
	}
	return string(data), true
}

// reason is the cause of a file error without the file's name.
func reason(err error) string {
	if pathError := (*os.PathError)(nil); errors.As(err, &pathError) {
		return pathError.Err.Error()
	}
	return err.Error()
}

// checkPEM checks that the text holds certificates and no private key.
func (r *report) checkPEM(field, text string) {
	const allowed = "one or more PEM blocks of type CERTIFICATE"
	rest, count := []byte(text), 0
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			r.add(field, "a PEM block of type "+shown(block.Type), allowed, "leave keys out of it")
			return
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			r.add(field, "a certificate that does not parse ("+err.Error()+")", allowed, "copy the file again")
			return
		}
		count++
	}
	if count == 0 {
		r.add(field, "no PEM block", allowed, "copy the certificate with its BEGIN and END lines")
	}
}
