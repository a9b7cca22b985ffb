package codec_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	commonpb "go.temporal.io/api/common/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"aether.internal/aether/internal/codec"
)

func line(id string, fill byte) string {
	return id + ":" + base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{fill}, 32))
}

func newCodec(t *testing.T, lines ...string) *codec.Codec {
	t.Helper()
	keys, err := codec.ParseKeys(strings.Join(lines, "\n"))
	if err != nil {
		t.Fatal(err)
	}
	return codec.New(keys)
}

func plain(text string) *commonpb.Payload {
	return &commonpb.Payload{Metadata: map[string][]byte{"encoding": []byte("json/plain")}, Data: []byte(text)}
}

func TestRoundTrip(t *testing.T) {
	c := newCodec(t, line("a", 1))
	want := plain(`"tenant-a"`)
	encoded, err := c.Encode([]*commonpb.Payload{want})
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(encoded[0].GetData(), []byte("tenant-a")) {
		t.Error("the encoded payload holds the clear text")
	}
	got, err := c.Decode(encoded)
	if err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(want, got[0]) {
		t.Errorf("decoded %v, want %v", got[0], want)
	}
}

func TestOldKeyStillReads(t *testing.T) {
	old, err := newCodec(t, line("a", 1)).Encode([]*commonpb.Payload{plain("1")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := newCodec(t, line("b", 2), line("a", 1)).Decode(old); err != nil {
		t.Errorf("a payload of the old key: %v", err)
	}
}

func TestDecodeRefuses(t *testing.T) {
	c := newCodec(t, line("a", 1))
	encoded, err := c.Encode([]*commonpb.Payload{plain("1")})
	if err != nil {
		t.Fatal(err)
	}
	with := func(change func(*commonpb.Payload)) *commonpb.Payload {
		p := proto.CloneOf(encoded[0])
		change(p)
		return p
	}
	for name, test := range map[string]struct {
		payload *commonpb.Payload
		want    error
	}{
		"empty":       {with(func(p *commonpb.Payload) { p.Data = nil }), codec.ErrDamaged},
		"short":       {with(func(p *commonpb.Payload) { p.Data = p.Data[:20] }), codec.ErrDamaged},
		"changed":     {with(func(p *commonpb.Payload) { p.Data[len(p.Data)-1] ^= 1 }), codec.ErrDamaged},
		"unknown key": {with(func(p *commonpb.Payload) { p.Metadata["encryption-key-id"] = []byte("z") }), codec.ErrUnknownKey},
		"no key ID":   {with(func(p *commonpb.Payload) { delete(p.Metadata, "encryption-key-id") }), codec.ErrUnknownKey},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := c.Decode([]*commonpb.Payload{test.payload}); !errors.Is(err, test.want) {
				t.Errorf("got %v, want %v", err, test.want)
			}
		})
	}
}

func TestClearPayloadPasses(t *testing.T) {
	want := plain("1")
	got, err := newCodec(t, line("a", 1)).Decode([]*commonpb.Payload{want})
	if err != nil || !proto.Equal(want, got[0]) {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestParseKeysRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"nothing":     "",
		"comment":     "# none",
		"no ID":       ":" + strings.Repeat("A", 44),
		"no colon":    "a",
		"short":       "a:AAAA",
		"not base64":  "a:!!!",
		"ID repeated": line("a", 1) + "\n" + line("a", 2),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := codec.ParseKeys(text)
			if err == nil {
				t.Fatal("accepted")
			}
			if strings.Contains(err.Error(), "AQEB") || strings.Contains(err.Error(), "AgIC") {
				t.Errorf("the error shows a key: %v", err)
			}
		})
	}
}

func TestHandler(t *testing.T) {
	c := newCodec(t, line("a", 1))
	encoded, err := c.Encode([]*commonpb.Payload{plain(`"x"`)})
	if err != nil {
		t.Fatal(err)
	}
	body, err := protojson.Marshal(&commonpb.Payloads{Payloads: encoded})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(codec.Handler(c, []string{"http://ui"}))
	defer server.Close()
	for name, test := range map[string]struct {
		method, origin string
		want           int
	}{
		"our page":     {http.MethodPost, "http://ui", http.StatusOK},
		"another page": {http.MethodPost, "http://evil", http.StatusForbidden},
		"preflight":    {http.MethodOptions, "http://ui", http.StatusNoContent},
	} {
		t.Run(name, func(t *testing.T) {
			request, err := http.NewRequestWithContext(t.Context(), test.method, server.URL+"/decode", bytes.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("Content-Type", "application/json")
			request.Header.Set("Origin", test.origin)
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			if response.StatusCode != test.want {
				t.Errorf("status %d, want %d", response.StatusCode, test.want)
			}
		})
	}
}
