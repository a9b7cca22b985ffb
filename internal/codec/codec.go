package codec

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"errors"
	"fmt"

	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/temporal"
	"google.golang.org/protobuf/proto"
)

const (
	encodingKey = "encoding"
	encoding    = "binary/encrypted"
	keyIDKey    = "encryption-key-id"
)

// Why a payload cannot be decoded.
var (
	ErrUnknownKey = errors.New("payload was encrypted with a key that is not configured")
	ErrDamaged    = errors.New("payload is too short or was changed")
)

// Codec implements converter.PayloadCodec.
type Codec struct{ keys Keys }

// New returns a codec with these keys.
func New(keys Keys) *Codec { return &Codec{keys: keys} }

// Encode encrypts payloads whole, with their metadata.
func (c *Codec) Encode(payloads []*commonpb.Payload) ([]*commonpb.Payload, error) {
	sealer, err := aead(c.keys.byID[c.keys.current])
	if err != nil {
		return nil, err
	}
	encoded := make([]*commonpb.Payload, len(payloads))
	for i, p := range payloads {
		plain, err := proto.Marshal(p)
		if err != nil {
			return nil, fmt.Errorf("encode payload: %w", err)
		}
		nonce := make([]byte, sealer.NonceSize())
		if _, err := rand.Read(nonce); err != nil {
			return nil, fmt.Errorf("encode payload: %w", err)
		}
		encoded[i] = &commonpb.Payload{
			Metadata: map[string][]byte{encodingKey: []byte(encoding), keyIDKey: []byte(c.keys.current)},
			// The key ID is authenticated with the content.
			Data: sealer.Seal(nonce, nonce, plain, []byte(c.keys.current)),
		}
	}
	return encoded, nil
}

// Decode decrypts payloads. One that is not encrypted passes as it is, so that
// a person may start a workflow with plain JSON.
func (c *Codec) Decode(payloads []*commonpb.Payload) ([]*commonpb.Payload, error) {
	decoded := make([]*commonpb.Payload, len(payloads))
	for i, p := range payloads {
		if string(p.GetMetadata()[encodingKey]) != encoding {
			decoded[i] = p
			continue
		}
		plain, err := c.open(p)
		if err != nil {
			return nil, err
		}
		decoded[i] = plain
	}
	return decoded, nil
}

func (c *Codec) open(p *commonpb.Payload) (*commonpb.Payload, error) {
	id := string(p.GetMetadata()[keyIDKey])
	key, ok := c.keys.byID[id]
	if !ok {
		return nil, fmt.Errorf("decode payload: %w: key ID %q", ErrUnknownKey, id)
	}
	opener, err := aead(key)
	if err != nil {
		return nil, err
	}
	size := opener.NonceSize()
	if len(p.GetData()) < size+opener.Overhead() {
		return nil, fmt.Errorf("decode payload: %w: %d bytes", ErrDamaged, len(p.GetData()))
	}
	plain, err := opener.Open(nil, p.GetData()[:size], p.GetData()[size:], []byte(id))
	if err != nil {
		return nil, fmt.Errorf("decode payload: %w", ErrDamaged)
	}
	payload := &commonpb.Payload{}
	if err := proto.Unmarshal(plain, payload); err != nil {
		return nil, fmt.Errorf("decode payload: %w", ErrDamaged)
	}
	return payload, nil
}

func aead(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("codec key: %w", err)
	}
	sealer, err := cipher.NewGCM(block)
	if err != nil {
		return nil, fmt.Errorf("codec key: %w", err)
	}
	return sealer, nil
}

// Converters returns the data and failure converters that go with a codec. The
// failure converter encrypts messages and stack traces too.
func Converters(c *Codec) (converter.DataConverter, converter.FailureConverter) {
	data := converter.NewCodecDataConverter(converter.GetDefaultDataConverter(), c)
	failure := temporal.NewDefaultFailureConverter(temporal.DefaultFailureConverterOptions{DataConverter: data, EncodeCommonAttributes: true})
	return data, failure
}
