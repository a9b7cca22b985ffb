package siteclients_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"aether.internal/aether/internal/site"
	"aether.internal/aether/internal/siteclients"
)

const token = "aether@pve!worker=hunter2-hunter2"

func sshKey(t *testing.T) string {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(block))
}

func secret(data map[string]string) client.Object {
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "aether-system", Name: "proxmox"}, Data: map[string][]byte{}}
	for key, value := range data {
		s.Data[key] = []byte(value)
	}
	return s
}

func from(key string) site.SecretSource {
	return site.SecretSource{Secret: &site.SecretReference{Namespace: "aether-system", Name: "proxmox", Key: key}}
}

func cluster(source site.SecretSource) site.Cluster {
	return site.Cluster{Name: "homelab", Endpoints: []string{"https://192.168.0.8:8006"}, Token: source, TLS: site.TLS{Fingerprints: []string{"AA:BB"}}}
}

func clients(c site.Cluster, objects ...client.Object) *siteclients.Clients {
	return siteclients.New(&site.Site{Spec: site.Spec{Proxmox: []site.Cluster{c}}}, fake.NewClientBuilder().WithObjects(objects...).Build(), slog.New(slog.DiscardHandler))
}

func TestProxmox(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name    string
		cluster site.Cluster
		objects []client.Object
		ask     string
		want    string // in the error; empty: a client
	}{
		{"from a Secret", cluster(from("token")), []client.Object{secret(map[string]string{"token": token, "other": "x"})}, "homelab", ""},
		{"from the only key", cluster(from("")), []client.Object{secret(map[string]string{"token": token + "\n"})}, "homelab", ""},
		{"from a file", cluster(site.SecretSource{File: file}), nil, "homelab", ""},
		{"another cluster", cluster(from("token")), nil, "lab2", `proxmox cluster "lab2" is not in the site`},
		{"no Secret", cluster(from("token")), nil, "homelab", "read Secret aether-system/proxmox"},
		{"another key", cluster(from("tokens")), []client.Object{secret(map[string]string{"token": token})}, "homelab", `has no key "tokens"`},
		{"several keys and none named", cluster(from("")), []client.Object{secret(map[string]string{"a": token, "b": token})}, "homelab", "has no key"},
		{"no file", cluster(site.SecretSource{File: file + "x"}), nil, "homelab", "no such file"},
		{"not a token", cluster(from("token")), []client.Object{secret(map[string]string{"token": "hunter2-hunter2"})}, "homelab", "USER@REALM!TOKENID=SECRET"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := clients(test.cluster, test.objects...)
			first, err := c.Proxmox(test.ask)
			if test.want != "" {
				if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "hunter2") {
					t.Errorf("got %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if second, err := c.Proxmox(test.ask); err != nil || second != first || first.Cluster() != "homelab" {
				t.Errorf("the second is another: %v", err)
			}
		})
	}
}

func TestDoor(t *testing.T) {
	withSSH := func(key string) site.Cluster {
		c := cluster(from("token"))
		c.SSH = &site.SSH{User: "aether", Key: from(key)}
		return c
	}
	objects := []client.Object{secret(map[string]string{"key": sshKey(t), "broken": "hunter2"})}
	c := clients(withSSH("key"), objects...)
	first, err := c.Door("homelab")
	if err != nil || first == nil {
		t.Fatalf("%v, %v", first, err)
	}
	if second, err := c.Door("homelab"); err != nil || second != first {
		t.Errorf("the second is another: %v", err)
	}
	if door, err := clients(cluster(from("token"))).Door("homelab"); door != nil || err != nil {
		t.Errorf("a site without a door: %v, %v", door, err)
	}
	for key, want := range map[string]string{"broken": "no private key", "missing": `has no key "missing"`} {
		if _, err := clients(withSSH(key), objects...).Door("homelab"); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: got %v", key, err)
		}
	}
	if _, err := c.Door("lab2"); err == nil {
		t.Error("another cluster has a door")
	}
}
