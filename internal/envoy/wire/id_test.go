package wire_test

import (
	"errors"
	"net/url"
	"testing"

	"aether.internal/aether/internal/envoy/wire"
)

func TestNamesRoundTrip(t *testing.T) {
	for _, id := range []wire.ID{{Tenant: "demo", Generation: 1}, {Tenant: "a-1", Generation: 123456789012}} {
		if got, err := wire.ParseNodeID(id.NodeID()); got != id || err != nil {
			t.Errorf("ParseNodeID(%q) = %v, %v", id.NodeID(), got, err)
		}
		again, err := url.Parse(id.URI().String())
		if err != nil {
			t.Fatal(err)
		}
		if got, err := wire.ParseURI(again); got != id || err != nil {
			t.Errorf("ParseURI(%q) = %v, %v", again, got, err)
		}
	}
}

func TestStrangeNames(t *testing.T) {
	for _, text := range []string{
		"", "proxy/", "proxy/demo", "proxy/demo/", "proxy/demo/0", "proxy/demo/-1", "proxy/demo/01", "proxy/demo/+1",
		"proxy/demo/1/2", "proxy//1", "proxy/Demo/1", "proxy/../demo/1", "demo/1", "proxy/demo/99999999999999999999",
	} {
		if id, err := wire.ParseNodeID(text); !errors.Is(err, wire.ErrInvalid) {
			t.Errorf("ParseNodeID(%q) = %v, %v, want ErrInvalid", text, id, err)
		}
	}
	for _, text := range []string{
		"aether://proxy/demo", "aether://other/demo/1", "spiffe://proxy/demo/1", "aether://proxy/demo/1?x=1",
		"aether://proxy/demo/1#x", "aether://user@proxy/demo/1", "aether://proxy:1/demo/1", "aether:proxy/demo/1",
		"aether://proxy/dem%6f/1",
	} {
		uri, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if id, err := wire.ParseURI(uri); !errors.Is(err, wire.ErrInvalid) {
			t.Errorf("ParseURI(%q) = %v, %v, want ErrInvalid", text, id, err)
		}
	}
}
