package pki_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"net"
	"net/netip"
	"testing"

	"aether.internal/aether/lab/controlplane/pki"
)

// A server and a client of one authority trust each other; others are refused.
func TestHandshake(t *testing.T) {
	ours, theirs := authority(t, "ours"), authority(t, "theirs")
	server := certificate(t, ours, pki.Request{CommonName: "server", Names: []string{"api.example.test"}, Addresses: []netip.Addr{netip.MustParseAddr("::ffff:127.0.0.1")}})
	for _, c := range []struct {
		name, called string
		trusts       *pki.Authority
		client       tls.Certificate
		ok           bool
	}{
		{"by name", "api.example.test", ours, certificate(t, ours, pki.Request{CommonName: "me"}), true},
		{"by address", "127.0.0.1", ours, certificate(t, ours, pki.Request{CommonName: "me"}), true},
		{"wrong name", "other.example.test", ours, certificate(t, ours, pki.Request{CommonName: "me"}), false},
		{"server of another authority", "127.0.0.1", theirs, certificate(t, ours, pki.Request{CommonName: "me"}), false},
		{"client of another authority", "127.0.0.1", ours, certificate(t, theirs, pki.Request{CommonName: "me"}), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			near, far := net.Pipe()
			defer near.Close()
			served := make(chan error, 1)
			go func() {
				defer far.Close()
				conn := tls.Server(far, &tls.Config{Certificates: []tls.Certificate{server}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ours.Pool()})
				err := conn.Handshake()
				if err == nil {
					_, err = conn.Write([]byte("x"))
				}
				served <- err
			}()
			conn := tls.Client(near, &tls.Config{RootCAs: c.trusts.Pool(), ServerName: c.called, Certificates: []tls.Certificate{c.client}})
			_, err := io.ReadFull(conn, make([]byte, 1))
			near.Close()
			if serverErr := <-served; (err == nil && serverErr == nil) != c.ok {
				t.Errorf("client %v, server %v; want success: %v", err, serverErr, c.ok)
			}
		})
	}
}

func TestSubject(t *testing.T) {
	pair, err := authority(t, "ca").Issue(pki.Request{CommonName: "system:node:n1", Organizations: []string{"system:nodes"}})
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(pair.Certificate)
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if c.Subject.CommonName != "system:node:n1" || len(c.Subject.Organization) != 1 || c.Subject.Organization[0] != "system:nodes" || c.IsCA {
		t.Errorf("subject %s, authority: %v", c.Subject, c.IsCA)
	}
}

func TestSigningKey(t *testing.T) {
	private, public, err := pki.SigningKey()
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(private)
	key, err := x509.ParseECPrivateKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	block, _ = pem.Decode(public)
	half, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if !key.PublicKey.Equal(half) {
		t.Error("the halves do not belong to each other")
	}
}

func authority(t *testing.T, name string) *pki.Authority {
	t.Helper()
	a, err := pki.NewAuthority(name)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func certificate(t *testing.T, a *pki.Authority, r pki.Request) tls.Certificate {
	t.Helper()
	pair, err := a.Issue(r)
	if err != nil {
		t.Fatal(err)
	}
	c, err := pair.TLS()
	if err != nil {
		t.Fatal(err)
	}
	return c
}
