package world

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/dns/dnsmessage"

	"aether.internal/aether/lab/controlplane/pki"
	"aether.internal/aether/lab/latency"
	"aether.internal/aether/lab/world/control"
)

func TestFloor(t *testing.T) {
	t.Parallel()
	clock, err := latency.NewClock(1)
	if err != nil {
		t.Fatal(err)
	}
	w := &World{Clock: clock}
	seconds := func(r control.FloorRequest) float64 {
		t.Helper()
		f, err := w.Floor(r)
		if err != nil {
			t.Fatal(err)
		}
		var sum float64
		for _, s := range f.Steps {
			sum += s.Seconds
		}
		if diff := sum - f.Seconds; diff > 1e-9 || diff < -1e-9 {
			t.Errorf("steps of %+v add up to %v, not %v", r, sum, f.Seconds)
		}
		return f.Seconds
	}
	one := seconds(control.FloorRequest{Workers: 1, Hosts: 1})
	two := seconds(control.FloorRequest{Workers: 2, Hosts: 2})
	ten := seconds(control.FloorRequest{Workers: 10, Hosts: 2})
	if one != two {
		t.Errorf("a second host does not take the second worker: %v and %v", one, two)
	}
	// Five clones on a host, each holding the storage for half of its time.
	if want := one + clock.Of(latency.CloneLinked).Seconds()*2; ten != want {
		t.Errorf("ten workers on two hosts take %v, want %v", ten, want)
	}
	if tenant := seconds(control.FloorRequest{Workers: 1, Hosts: 1, Tenant: true}); tenant <= one {
		t.Errorf("a proxy on the same storage costs nothing: %v and %v", tenant, one)
	}
	if _, err := w.Floor(control.FloorRequest{Workers: 1}); err == nil {
		t.Error("no host is not refused")
	}
}

func TestSecretValues(t *testing.T) {
	t.Parallel()
	authority, err := pki.NewAuthority("test")
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := `{"apiVersion":"v1","kind":"Config","users":[{"name":"a","user":{"token":"the-token-itself"}}]}`
	for name, tc := range map[string]struct {
		key  string
		data string
		want []string
	}{
		"private key":       {key: "ca.key", data: string(authority.Key), want: []string{string(authority.Key)}},
		"certificate":       {key: "ca.crt", data: string(authority.Certificate)},
		"token":             {key: "token", data: "user@pve!name=secret", want: []string{"user@pve!name=secret"}},
		"id of a token":     {key: "token-id", data: "abcdef"},
		"token secret":      {key: "token-secret", data: "0123456789abcdef", want: []string{"0123456789abcdef"}},
		"name of a user":    {key: "DB_USER", data: "somebody"},
		"kubeconfig, token": {key: "admin.conf", data: kubeconfig, want: []string{"the-token-itself"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, v := range secretValues(tc.key, []byte(tc.data)) {
				if v != "" {
					got = append(got, v)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestSecretStoreKeepsEachValueOnce(t *testing.T) {
	t.Parallel()
	var s secretStore
	s.add("first", "a-secret-value\n")
	s.add("second", "a-secret-value")
	s.add("too short to search for", "abc")
	if diff := cmp.Diff([]control.Secret{{Name: "first", Value: "a-secret-value"}}, s.list()); diff != "" {
		t.Error(diff)
	}
}

func TestAnswerName(t *testing.T) {
	t.Parallel()
	table := map[string]netip.Addr{"ghcr.io.": netip.MustParseAddr("192.168.0.5")}
	for name, tc := range map[string]struct {
		host    string
		kind    dnsmessage.Type
		rcode   dnsmessage.RCode
		answers int
	}{
		"known":            {"ghcr.io.", dnsmessage.TypeA, dnsmessage.RCodeSuccess, 1},
		"in other letters": {"GHCR.io.", dnsmessage.TypeA, dnsmessage.RCodeSuccess, 1},
		"no such data":     {"ghcr.io.", dnsmessage.TypeAAAA, dnsmessage.RCodeSuccess, 0},
		"no such name":     {"nowhere.test.", dnsmessage.TypeA, dnsmessage.RCodeNameError, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			question := dnsmessage.Message{
				Header:    dnsmessage.Header{ID: 7, RecursionDesired: true},
				Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(tc.host), Type: tc.kind, Class: dnsmessage.ClassINET}},
			}
			packed, err := question.Pack()
			if err != nil {
				t.Fatal(err)
			}
			data, err := answerName(packed, table)
			if err != nil {
				t.Fatal(err)
			}
			var m dnsmessage.Message
			if err := m.Unpack(data); err != nil {
				t.Fatal(err)
			}
			if m.ID != 7 || !m.Response || m.RCode != tc.rcode || len(m.Answers) != tc.answers {
				t.Errorf("answer is %+v", m)
			}
		})
	}
	if _, err := answerName([]byte("not a question"), table); err == nil {
		t.Error("noise is answered")
	}
}

func TestThroughProxy(t *testing.T) {
	t.Parallel()
	data, err := ThroughProxy([]byte(`{"apiVersion":"v1","kind":"Config","clusters":[{"name":"c","cluster":{"server":"https://10.1.1.10:6443"}}]}`), "http://127.0.0.1:8118")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"proxy-url: http://127.0.0.1:8118", "server: https://10.1.1.10:6443"} {
		if !strings.Contains(string(data), want) {
			t.Errorf("%q is not in\n%s", want, data)
		}
	}
}
