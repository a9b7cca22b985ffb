package kamaji_test

import (
	"crypto/tls"
	"crypto/x509"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"aether.internal/aether/lab/kamaji/kamajitest"
)

// users lists etcd's users.
func users(t *testing.T, w *kamajitest.World) []string {
	t.Helper()
	pair, err := w.Store.Root().TLS()
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(w.Store.CA().Certificate)
	conn, err := clientv3.New(clientv3.Config{
		Endpoints: []string{w.Store.Endpoint()}, Logger: zap.NewNop(),
		TLS: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	list, err := conn.UserList(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return list.Users
}
