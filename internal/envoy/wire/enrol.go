package wire

import "time"

// ServerName is what proxies expect in the server's certificate, whichever
// address they dial, so that the server can move without new certificates.
const ServerName = "xds.aether.internal"

// Paths of the enrolment service.
const (
	EnrolPath  = "/enroll"
	RenewPath  = "/renew"
	HealthPath = "/healthz"
)

// EnrolRequest asks for a first certificate with a one-time token, or, sent to
// RenewPath over a connection with the present certificate and no token, for
// the next one.
type EnrolRequest struct {
	Token string `json:"token,omitempty"`
	CSR   string `json:"csr"` // PEM
}

// EnrolResponse has the certificate.
type EnrolResponse struct {
	Certificate string `json:"certificate"` // PEM
}

// Refusal is the body of every answer that is not a certificate.
type Refusal struct {
	Error string `json:"error"`
}

// RenewAt is when a certificate is renewed: after 60 % of its life, which
// leaves more than the last third for trying.
func RenewAt(notBefore, notAfter time.Time) time.Time {
	return notBefore.Add(notAfter.Sub(notBefore) / 10 * 6)
}
