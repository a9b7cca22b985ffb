package wire

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

// The ports of a proxy. They equal those of the control plane's Service,
// because a tenant's advertise address has no port of its own.
const (
	PortAPI          = 6443
	PortKonnectivity = 8132
)

// ErrInvalid marks a value that names no proxy or cannot configure one.
var ErrInvalid = errors.New("invalid proxy configuration")

// ID names one proxy: the tenant it serves and which of the tenant's proxies
// it is. While a proxy is replaced, two generations live side by side.
type ID struct {
	Tenant     string `json:"tenant"`
	Generation int64  `json:"generation"`
}

const (
	nodePrefix = "proxy/"
	uriScheme  = "aether"
	uriHost    = "proxy"
)

// Validate checks both parts.
func (id ID) Validate() error {
	if !tenantName().MatchString(id.Tenant) {
		return fmt.Errorf("%w: name: %q; use 1 to 63 lower-case letters, digits and '-', starting with a letter", ErrInvalid, id.Tenant)
	}
	if id.Generation < 1 {
		return fmt.Errorf("%w: generation: %d; the first proxy of a tenant is generation 1", ErrInvalid, id.Generation)
	}
	return nil
}

// NodeID is what the proxy calls itself in its discovery requests.
func (id ID) NodeID() string {
	return nodePrefix + id.Tenant + "/" + strconv.FormatInt(id.Generation, 10)
}

// String is the node ID.
func (id ID) String() string { return id.NodeID() }

// URI is the subject alternative name in the proxy's certificate.
func (id ID) URI() *url.URL {
	return &url.URL{Scheme: uriScheme, Host: uriHost, Path: "/" + id.Tenant + "/" + strconv.FormatInt(id.Generation, 10)}
}

// ParseNodeID is the inverse of ID.NodeID.
func ParseNodeID(node string) (ID, error) {
	rest, found := strings.CutPrefix(node, nodePrefix)
	if !found {
		return ID{}, fmt.Errorf("%w: node ID: %q; it must be proxy/<tenant>/<generation>", ErrInvalid, node)
	}
	return parseID(rest)
}

// ParseURI is the inverse of ID.URI.
func ParseURI(uri *url.URL) (ID, error) {
	plain := url.URL{Scheme: uri.Scheme, Host: uri.Host, Path: uri.Path}
	if uri.Scheme != uriScheme || uri.Host != uriHost || plain != *uri {
		return ID{}, fmt.Errorf("%w: URI: %q; it must be aether://proxy/<tenant>/<generation>", ErrInvalid, uri)
	}
	return parseID(strings.TrimPrefix(uri.Path, "/"))
}

func parseID(text string) (ID, error) {
	tenant, number, _ := strings.Cut(text, "/")
	generation, err := strconv.ParseInt(number, 10, 64)
	if err != nil || strconv.FormatInt(generation, 10) != number {
		return ID{}, fmt.Errorf("%w: generation: %q; it must be a whole number from 1 up", ErrInvalid, number)
	}
	id := ID{Tenant: tenant, Generation: generation}
	return id, id.Validate()
}

func tenantName() *regexp.Regexp { return regexp.MustCompile(`^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`) }
