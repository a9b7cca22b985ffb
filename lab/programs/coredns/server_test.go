package coredns

import (
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/dns/dnsmessage"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

func query(t *testing.T, name string, kind dnsmessage.Type) []byte {
	t.Helper()
	message := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 7, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: kind, Class: dnsmessage.ClassINET}},
	}
	packed, err := message.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return packed
}

func TestAnswers(t *testing.T) {
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: name, Namespace: "default", Labels: map[string]string{discoveryv1.LabelServiceName: name}}
	}
	host := "db-0"
	client := fake.NewClientset(
		&corev1.Service{ObjectMeta: meta("kubernetes"), Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1"}},
		&corev1.Service{ObjectMeta: meta("db"), Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone}},
		&discoveryv1.EndpointSlice{ObjectMeta: meta("db"), Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.244.1.2"}, Hostname: &host}}},
	)
	server, _ := newServer(client, "cluster.local.", "", slog.New(slog.DiscardHandler))
	server.factory.Start(t.Context().Done())
	server.factory.WaitForCacheSync(t.Context().Done())
	cases := []struct {
		name string
		kind dnsmessage.Type
		code dnsmessage.RCode
		want []string
	}{
		{name: "kubernetes.default.svc.cluster.local.", kind: dnsmessage.TypeA, want: []string{"10.96.0.1"}},
		{name: "KUBERNETES.default.svc.cluster.local.", kind: dnsmessage.TypeA, want: []string{"10.96.0.1"}},
		{name: "kubernetes.default.svc.cluster.local.", kind: dnsmessage.TypeAAAA},
		{name: "db.default.svc.cluster.local.", kind: dnsmessage.TypeA, want: []string{"10.244.1.2"}},
		{name: "db-0.db.default.svc.cluster.local.", kind: dnsmessage.TypeA, want: []string{"10.244.1.2"}},
		{name: "db-1.db.default.svc.cluster.local.", kind: dnsmessage.TypeA, code: dnsmessage.RCodeNameError},
		{name: "none.default.svc.cluster.local.", kind: dnsmessage.TypeA, code: dnsmessage.RCodeNameError},
		{name: "cluster.local.", kind: dnsmessage.TypeA},
		{name: "example.org.", kind: dnsmessage.TypeA, code: dnsmessage.RCodeServerFailure}, // nobody to forward to
	}
	for _, c := range cases {
		t.Run(c.name+" "+c.kind.String(), func(t *testing.T) {
			var answer dnsmessage.Message
			if err := answer.Unpack(server.handle(t.Context(), query(t, c.name, c.kind))); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, resource := range answer.Answers {
				if a, ok := resource.Body.(*dnsmessage.AResource); ok {
					got = append(got, ipString(a.A))
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" || answer.RCode != c.code || answer.ID != 7 {
				t.Errorf("code %s, want %s; addresses (-want +got):\n%s", answer.RCode, c.code, diff)
			}
		})
	}
	if server.handle(t.Context(), []byte("nonsense")) != nil {
		t.Error("nonsense was answered")
	}
}

func TestZone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "Corefile")
	for content, want := range map[string]string{
		".:53 {\n   kubernetes tenant.local in-addr.arpa {\n }\n}": "tenant.local.",
		".:53 {\n}": "",
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := zoneOf(path)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("zone of %q is %q, error %v", content, got, err)
		}
	}
}

func ipString(ip [4]byte) string { return netip.AddrFrom4(ip).String() }
