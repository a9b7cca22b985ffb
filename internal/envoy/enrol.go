package envoy

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"aether.internal/aether/internal/envoy/wire"
)

// maxRequestBytes is far above any certificate request.
const maxRequestBytes = 64 << 10

// Enrolment gives proxies their certificates.
type Enrolment struct {
	ca     *CA
	tokens EnrolmentStore
	serves func(ID) bool
	log    *slog.Logger
}

// NewEnrolment returns the service. serves tells which proxies are served now:
// no other gets a certificate.
func NewEnrolment(ca *CA, tokens EnrolmentStore, serves func(ID) bool, log *slog.Logger) *Enrolment {
	return &Enrolment{ca: ca, tokens: tokens, serves: serves, log: log}
}

// Handler serves the paths of package wire.
func (e *Enrolment) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+wire.EnrolPath, e.enrol)
	mux.HandleFunc("POST "+wire.RenewPath, e.renew)
	mux.HandleFunc("GET "+wire.HealthPath, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	return mux
}

func (e *Enrolment) enrol(w http.ResponseWriter, r *http.Request) {
	body, request, ok := e.read(w, r)
	if !ok {
		return
	}
	id, err := e.tokens.Redeem(r.Context(), body.Token, Fingerprint(request.RawSubjectPublicKeyInfo))
	switch {
	case errors.Is(err, ErrTokenUnknown), errors.Is(err, ErrTokenUsed), errors.Is(err, ErrTokenExpired):
		// The log says why; a stranger learns only that it did not work.
		e.log.Warn("enrolment refused", "tenant", id.Tenant, "generation", id.Generation, "from", r.RemoteAddr, "reason", err)
		e.refuse(w, http.StatusForbidden, "the enrolment token is not valid; the proxy must be made anew")
		return
	case err != nil:
		e.log.Error("enrolment failed", "from", r.RemoteAddr, "error", err)
		e.refuse(w, http.StatusServiceUnavailable, "enrolment is not possible at the moment; try again")
		return
	}
	if !e.serves(id) {
		// Not final: this server may not have seen a new tenant yet, and the
		// token stays good for the same key.
		e.log.Warn("enrolment put off", "tenant", id.Tenant, "generation", id.Generation, "reason", "not served")
		e.refuse(w, http.StatusServiceUnavailable, "this proxy is not served now; try again")
		return
	}
	e.answer(w, id, request, "enrolled")
}

func (e *Enrolment) renew(w http.ResponseWriter, r *http.Request) {
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 || len(r.TLS.VerifiedChains[0][0].URIs) != 1 {
		e.refuse(w, http.StatusUnauthorized, "renewal needs the present certificate")
		return
	}
	id, err := wire.ParseURI(r.TLS.VerifiedChains[0][0].URIs[0])
	if err != nil || !e.serves(id) {
		e.log.Warn("renewal refused", "tenant", id.Tenant, "generation", id.Generation, "from", r.RemoteAddr)
		e.refuse(w, http.StatusForbidden, errRevoked.Error())
		return
	}
	_, request, ok := e.read(w, r)
	if !ok {
		return
	}
	e.answer(w, id, request, "renewed")
}

func (e *Enrolment) read(w http.ResponseWriter, r *http.Request) (wire.EnrolRequest, *x509.CertificateRequest, bool) {
	var body wire.EnrolRequest
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequestBytes))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&body); err != nil {
		// The decoder's text may quote the body, and the body has the token.
		e.refuse(w, http.StatusBadRequest, `body: it must be JSON with the fields "token" and "csr"`)
		return body, nil, false
	}
	request, err := ParseRequest([]byte(body.CSR))
	if err != nil {
		e.refuse(w, http.StatusBadRequest, err.Error())
		return body, nil, false
	}
	return body, request, true
}

func (e *Enrolment) answer(w http.ResponseWriter, id ID, request *x509.CertificateRequest, what string) {
	certificate, err := e.ca.SignProxy(id, request)
	if err != nil {
		e.log.Error("certificate not signed", "tenant", id.Tenant, "generation", id.Generation, "error", err)
		e.refuse(w, http.StatusInternalServerError, "the certificate could not be signed; try again")
		return
	}
	e.log.Info("proxy "+what, "tenant", id.Tenant, "generation", id.Generation)
	e.write(w, http.StatusOK, wire.EnrolResponse{Certificate: string(certificate)})
}

func (e *Enrolment) refuse(w http.ResponseWriter, code int, reason string) {
	e.write(w, code, wire.Refusal{Error: reason})
}

func (e *Enrolment) write(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	if err := json.NewEncoder(w).Encode(body); err != nil {
		e.log.Warn("answer not sent", "error", err)
	}
}

// newHTTPServer serves the enrolment over TLS. A client certificate is
// verified when there is one: a proxy that enrols has none yet.
func newHTTPServer(handler http.Handler, certificates *serverCertificates, ca *CA, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler: handler,
		TLSConfig: &tls.Config{
			MinVersion:     tls.VersionTLS13,
			Time:           certificates.now,
			GetCertificate: certificates.get,
			ClientAuth:     tls.VerifyClientCertIfGiven,
			ClientCAs:      ca.Pool(),
			NextProtos:     []string{"h2", "http/1.1"},
		},
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       time.Minute,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}
