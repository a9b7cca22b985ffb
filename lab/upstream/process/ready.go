package process

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// pollEvery is the time between two questions whether a program is ready.
// Start-up times are seconds; this adds little and asks little.
const pollEvery = 50 * time.Millisecond

// WaitReady asks until the probe succeeds. It ends early when the process does.
func (p *Process) WaitReady(ctx context.Context, probe func(context.Context) error) error {
	for {
		attempt, cancel := context.WithTimeout(ctx, 5*time.Second)
		last := probe(attempt)
		cancel()
		if last == nil {
			return nil
		}
		select {
		case <-p.done:
			return p.Err()
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w; last answer: %w; its log is %s", p.name, ctx.Err(), last, p.logFile)
		case <-time.After(pollEvery):
		}
	}
}

// HTTPClient reaches servers in a namespace. Each request has its own
// connection, so that none outlives a server that was killed.
func HTTPClient(network Network, config *tls.Config) *http.Client {
	dial := (&net.Dialer{}).DialContext
	if network != nil {
		dial = network.DialContext
	}
	return &http.Client{Transport: &http.Transport{
		DialContext:       dial,
		TLSClientConfig:   config,
		DisableKeepAlives: true,
	}}
}

// HTTPProbe is a probe that wants status 200 from a URL.
func HTTPProbe(client *http.Client, url string) func(context.Context) error {
	return func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer func() { _ = resp.Body.Close() }()
		body, err := io.ReadAll(io.LimitReader(resp.Body, 2000))
		if err != nil {
			return err
		}
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("GET %s: %s: %s", url, resp.Status, body)
		}
		return nil
	}
}
