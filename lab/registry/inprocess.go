package registry

import (
	"bytes"
	"io"
	"net/http"
)

// inProcess is a transport that hands requests to a handler of this process:
// the wire between the registries and what fills them.
type inProcess struct{ handler http.Handler }

// RoundTrip implements http.RoundTripper.
func (t inProcess) RoundTrip(request *http.Request) (*http.Response, error) {
	inbound := request.Clone(request.Context())
	inbound.RequestURI = request.URL.RequestURI()
	if inbound.Host == "" {
		inbound.Host = request.URL.Host
	}
	if inbound.Body == nil {
		inbound.Body = http.NoBody
	}
	answer := &answer{header: http.Header{}}
	t.handler.ServeHTTP(answer, inbound)
	if answer.status == 0 {
		answer.status = http.StatusOK
	}
	return &http.Response{
		Status: http.StatusText(answer.status), StatusCode: answer.status, Header: answer.header,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: request,
		ContentLength: int64(answer.body.Len()), Body: io.NopCloser(&answer.body),
	}, nil
}

// answer collects what a handler writes.
type answer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

// Header implements http.ResponseWriter.
func (a *answer) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(status int) {
	if a.status == 0 {
		a.status = status
	}
}

// Write implements http.ResponseWriter.
func (a *answer) Write(data []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(data)
}
