package proxmox

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	dialTimeout = 3 * time.Second
	// answerTimeout is above the 30 s a Proxmox node waits for another one.
	answerTimeout = 45 * time.Second
	// restTime is how long an endpoint that could not be connected to is
	// passed over.
	restTime = 20 * time.Second
)

var errFingerprint = errors.New("certificate has none of the stated fingerprints")

// pinned returns a TLS configuration that trusts the CA, or certificates with
// one of the fingerprints, and nothing else.
func pinned(caPEM []byte, fingerprints []string) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if len(caPEM) > 0 {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(caPEM) {
			return nil, errors.New("the CA holds no certificate in PEM form")
		}
	}
	if len(fingerprints) == 0 {
		if config.RootCAs == nil {
			return nil, errors.New("neither a CA nor fingerprints are given; an unverified connection is never made")
		}
		return config, nil
	}
	wanted := make([]string, 0, len(fingerprints))
	for _, print := range fingerprints {
		wanted = append(wanted, strings.ToLower(strings.ReplaceAll(print, ":", "")))
	}
	roots := config.RootCAs
	config.InsecureSkipVerify = true //nolint:gosec // verified below, by fingerprint or CA
	config.VerifyConnection = func(state tls.ConnectionState) error {
		sum := sha256.Sum256(state.PeerCertificates[0].Raw)
		if slices.Contains(wanted, hex.EncodeToString(sum[:])) {
			return nil
		}
		if roots == nil {
			return errFingerprint
		}
		options := x509.VerifyOptions{Roots: roots, DNSName: state.ServerName, Intermediates: x509.NewCertPool()}
		for _, certificate := range state.PeerCertificates[1:] {
			options.Intermediates.AddCert(certificate)
		}
		_, err := state.PeerCertificates[0].Verify(options)
		return err
	}
	return config, nil
}

// failover sends requests to the endpoint that answered last and moves on to
// the next when one cannot be connected to. A request that may have reached a
// server is repeated elsewhere only when it reads.
type failover struct {
	endpoints []*url.URL
	base      http.RoundTripper

	mu      sync.Mutex
	current int
	resting []time.Time // until when each endpoint is passed over
}

func newFailover(endpoints []string, config *tls.Config, dial dialFunc) (*failover, error) {
	f := &failover{resting: make([]time.Time, len(endpoints))}
	for _, endpoint := range endpoints {
		parsed, err := url.Parse(endpoint)
		if err != nil || parsed.Host == "" || parsed.Scheme != "https" {
			return nil, fmt.Errorf("endpoint %q: give https://<host>:8006", endpoint)
		}
		f.endpoints = append(f.endpoints, parsed)
	}
	if len(f.endpoints) == 0 {
		return nil, errors.New("no endpoint is given; give https://<host>:8006")
	}
	if dial == nil {
		dial = (&net.Dialer{KeepAlive: 15 * time.Second}).DialContext
	}
	f.base = &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, dialTimeout)
			defer cancel()
			return dial(ctx, network, address)
		},
		TLSClientConfig:       config,
		TLSHandshakeTimeout:   dialTimeout,
		ResponseHeaderTimeout: answerTimeout,
		IdleConnTimeout:       60 * time.Second,
		MaxIdleConnsPerHost:   16,
		// HTTP/1.1 only: HTTP/2 has no reason phrase, which is where
		// Proxmox puts its errors.
		TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{},
	}
	return f, nil
}

type dialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// RoundTrip implements http.RoundTripper.
func (f *failover) RoundTrip(request *http.Request) (*http.Response, error) {
	sent, _ := request.Context().Value(sentKey{}).(*atomic.Bool)
	var response *http.Response
	var err error
	for _, index := range f.order() {
		attempt, cloneErr := f.attempt(request, index)
		if cloneErr != nil {
			return nil, cloneErr
		}
		var wrote atomic.Bool
		trace := &httptrace.ClientTrace{WroteHeaders: func() { wrote.Store(true) }}
		attempt = attempt.WithContext(httptrace.WithClientTrace(attempt.Context(), trace))
		var next *http.Response
		next, err = f.base.RoundTrip(attempt)
		if wrote.Load() && sent != nil {
			sent.Store(true)
		}
		if err == nil {
			if response != nil {
				_ = response.Body.Close()
			}
			f.answered(index)
			response = next
			if !elsewhere(request, response) {
				return response, nil
			}
			continue
		}
		if request.Context().Err() != nil || untrusted(err) {
			break
		}
		if !wrote.Load() {
			f.rest(index)
		} else if request.Method != http.MethodGet {
			break
		}
	}
	if response != nil {
		return response, nil
	}
	return nil, err
}

// elsewhere tells whether another endpoint may answer better: this one says
// that it cannot reach the node the request is about.
func elsewhere(request *http.Request, response *http.Response) bool {
	return request.Method == http.MethodGet && (response.StatusCode == 595 || response.StatusCode == 596)
}

// attempt is the request addressed to one endpoint.
func (f *failover) attempt(request *http.Request, index int) (*http.Request, error) {
	attempt := request.Clone(request.Context())
	attempt.URL.Scheme, attempt.URL.Host, attempt.Host = f.endpoints[index].Scheme, f.endpoints[index].Host, f.endpoints[index].Host
	if request.GetBody != nil {
		body, err := request.GetBody()
		if err != nil {
			return nil, fmt.Errorf("repeat the request's body: %w", err)
		}
		attempt.Body = body
	}
	return attempt, nil
}

// order returns the endpoints to try: from the last good one on, those that
// rest at the end.
func (f *failover) order() []int {
	f.mu.Lock()
	defer f.mu.Unlock()
	var fresh, resting []int
	for i := range f.endpoints {
		index := (f.current + i) % len(f.endpoints)
		if time.Now().Before(f.resting[index]) {
			resting = append(resting, index)
		} else {
			fresh = append(fresh, index)
		}
	}
	return append(fresh, resting...)
}

func (f *failover) answered(index int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.current, f.resting[index] = index, time.Time{}
}

func (f *failover) rest(index int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.resting[index] = time.Now().Add(restTime)
}

// sentKey finds, in a request's context, the flag that is set once the
// request went out.
type sentKey struct{}
