package cilium

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/registry"
	"helm.sh/helm/v3/pkg/repo"
	"sigs.k8s.io/yaml"
)

// ChartRef says where the chart comes from: one of Path, OCI and Repository.
type ChartRef struct {
	Path       string // folder or .tgz
	OCI        string // oci://registry/project/cilium
	Repository string // https://helm.cilium.io
	Name       string // in the repository
	Version    string // with Path it is checked when stated
	CA         []byte // PEM; nil: the system's
}

// ErrChart means that the chart cannot be had or is not the one that was asked for.
var ErrChart = errors.New("chart is not usable")

// Chart is a loaded chart.
type Chart struct{ inner *chart.Chart }

// Version is the chart's version.
func (c *Chart) Version() string { return c.inner.Metadata.Version }

const (
	chartName    = "cilium"
	mostChart    = 32 << 20
	fetchTimeout = 2 * time.Minute
)

// LoadChart fetches and loads the chart and leaves out what only makes the
// stored release large.
func LoadChart(ctx context.Context, ref ChartRef) (*Chart, error) {
	loaded, err := load(ctx, ref)
	if err != nil {
		return nil, fmt.Errorf("load chart %s: %w", ref.source(), err)
	}
	if loaded.Metadata == nil || loaded.Metadata.Name != chartName {
		return nil, fmt.Errorf("load chart %s: %w: found a chart that is not named %s; correct charts.cilium of the site", ref.source(), ErrChart, chartName)
	}
	if found := loaded.Metadata.Version; ref.Version != "" && strings.TrimPrefix(ref.Version, "v") != strings.TrimPrefix(found, "v") {
		return nil, fmt.Errorf("load chart %s: %w: found version %s, the site states %s; correct one of them", ref.source(), ErrChart, found, ref.Version)
	}
	strip(loaded)
	return &Chart{inner: loaded}, nil
}

func (r ChartRef) source() string {
	switch {
	case r.Path != "":
		return r.Path
	case r.OCI != "":
		return r.OCI
	default:
		return r.Repository + " " + r.Name
	}
}

func load(ctx context.Context, ref ChartRef) (*chart.Chart, error) {
	if ref.Path != "" {
		if _, err := os.Stat(ref.Path); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrChart, err)
		}
		loaded, err := loader.Load(ref.Path)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrChart, err)
		}
		return loaded, nil
	}
	client, err := httpClient(ref.CA)
	if err != nil {
		return nil, err
	}
	var archive []byte
	if ref.OCI != "" {
		archive, err = pull(client, ref)
	} else {
		archive, err = download(ctx, client, ref)
	}
	if err != nil {
		return nil, err
	}
	loaded, err := loader.LoadArchive(bytes.NewReader(archive))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrChart, err)
	}
	return loaded, nil
}

func httpClient(ca []byte) (*http.Client, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if len(ca) > 0 {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(ca) {
			return nil, errors.New("the chart's CA holds no certificate in PEM form")
		}
	}
	return &http.Client{Timeout: fetchTimeout, Transport: &http.Transport{TLSClientConfig: config, Proxy: http.ProxyFromEnvironment}}, nil
}

func pull(client *http.Client, ref ChartRef) ([]byte, error) {
	r, err := registry.NewClient(registry.ClientOptHTTPClient(client), registry.ClientOptWriter(io.Discard))
	if err != nil {
		return nil, fmt.Errorf("make a registry client: %w", err)
	}
	result, err := r.Pull(strings.TrimPrefix(ref.OCI, registry.OCIScheme+"://") + ":" + ref.Version)
	if err != nil {
		return nil, fmt.Errorf("pull: %w", err)
	}
	return result.Chart.Data, nil
}

// download reads a chart repository's index and fetches the archive.
func download(ctx context.Context, client *http.Client, ref ChartRef) ([]byte, error) {
	base := strings.TrimRight(ref.Repository, "/") + "/"
	text, err := fetch(ctx, client, base+"index.yaml")
	if err != nil {
		return nil, err
	}
	var index repo.IndexFile
	if err := yaml.Unmarshal(text, &index); err != nil {
		return nil, fmt.Errorf("%w: the repository's index does not parse: %w", ErrChart, err)
	}
	index.SortEntries()
	entry, err := index.Get(ref.Name, ref.Version)
	if err != nil || len(entry.URLs) == 0 {
		return nil, fmt.Errorf("%w: the repository has no %s in version %s", ErrChart, ref.Name, ref.Version)
	}
	root, err := url.Parse(base)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrChart, err)
	}
	at, err := root.Parse(entry.URLs[0])
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrChart, err)
	}
	return fetch(ctx, client, at.String())
}

func fetch(ctx context.Context, client *http.Client, address string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrChart, err)
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("fetch: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode == http.StatusNotFound {
		return nil, fmt.Errorf("%w: %s is not there", ErrChart, address)
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("fetch %s: %s", address, response.Status)
	}
	data, err := io.ReadAll(io.LimitReader(response.Body, mostChart))
	if err != nil {
		return nil, fmt.Errorf("fetch %s: %w", address, err)
	}
	return data, nil
}

// strip removes files that no template needs. Each revision is a Secret in
// the tenant's data store, and these are half of it.
func strip(c *chart.Chart) {
	kept := c.Files[:0]
	for _, file := range c.Files {
		dashboard := strings.Contains(file.Name, "/dashboards/")
		readme := strings.HasPrefix(file.Name, "README") || strings.HasSuffix(file.Name, "values.yaml.tmpl")
		if !dashboard && !readme {
			kept = append(kept, file)
		}
	}
	c.Files = kept
}
