package proxyagent

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"aether.internal/aether/internal/envoy/wire"
)

// ErrRefused marks a refusal that trying again does not change.
var ErrRefused = errors.New("refused by the enrolment service")

const (
	callTimeout      = 20 * time.Second
	maxResponseBytes = 64 << 10
)

// authority calls the enrolment service.
type authority struct {
	address string
	roots   *x509.CertPool
	now     func() time.Time
}

// call posts a request, with a client certificate if there is one, and returns
// the new certificate. Errors never carry the request.
func (a authority) call(ctx context.Context, path string, body wire.EnrolRequest, present *tls.Certificate) ([]byte, error) {
	data, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("call %s: %w", path, err)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+a.address+path, bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("call %s: %w", path, err)
	}
	request.Header.Set("Content-Type", "application/json")
	config := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: a.roots, ServerName: wire.ServerName, Time: a.now}
	if present != nil {
		config.Certificates = []tls.Certificate{*present}
	}
	// One connection per call: the certificate changes between calls.
	transport := &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return nil, fmt.Errorf("call %s: %w", path, err)
	}
	defer func() { _ = response.Body.Close() }()
	return readAnswer(path, response)
}

func readAnswer(path string, response *http.Response) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(response.Body, maxResponseBytes))
	if err != nil {
		return nil, fmt.Errorf("call %s: %w", path, err)
	}
	if response.StatusCode != http.StatusOK {
		var refusal wire.Refusal
		if err := json.Unmarshal(data, &refusal); err != nil || refusal.Error == "" {
			refusal.Error = "no reason given"
		}
		err := fmt.Errorf("call %s: %s: %s", path, response.Status, refusal.Error)
		switch response.StatusCode {
		case http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden:
			return nil, fmt.Errorf("%w: %w", ErrRefused, err)
		default:
			return nil, err
		}
	}
	var answer wire.EnrolResponse
	if err := json.Unmarshal(data, &answer); err != nil {
		return nil, fmt.Errorf("call %s: %w", path, err)
	}
	return []byte(answer.Certificate), nil
}
