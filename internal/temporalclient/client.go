// Package temporalclient connects Aether's programs to a Temporal server, all
// in the same way: address and TLS from the usual TEMPORAL_ variables and
// profile file, payloads through the codec.
package temporalclient

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/contrib/envconfig"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/log"

	"aether.internal/aether/internal/codec"
)

// Options say how to connect.
type Options struct {
	// Address overrides TEMPORAL_ADDRESS, as 127.0.0.1:7233.
	Address string
	// Namespace overrides TEMPORAL_NAMESPACE.
	Namespace string
	// CodecKeys names a file of codec keys; empty sends payloads in clear.
	CodecKeys string
	Log       *slog.Logger
}

// Dial connects and fails when the server does not answer.
func Dial(ctx context.Context, o Options) (client.Client, error) {
	options, err := load(o)
	if err != nil {
		return nil, err
	}
	c, err := client.DialContext(ctx, options)
	if err != nil {
		return nil, fmt.Errorf("connect to Temporal at %s: %w; is the server up, and does TEMPORAL_ADDRESS name it?", options.HostPort, err)
	}
	return c, nil
}

// Lazy returns a client that connects with its first call, so that a process
// may start while the server is away.
func Lazy(o Options) (client.Client, error) {
	options, err := load(o)
	if err != nil {
		return nil, err
	}
	return client.NewLazyClient(options)
}

// Converter returns what decodes the payloads that the options' clients
// exchange.
func (o Options) Converter() (converter.DataConverter, error) {
	options, err := load(o)
	if err != nil {
		return nil, err
	}
	if options.DataConverter == nil {
		return converter.GetDefaultDataConverter(), nil
	}
	return options.DataConverter, nil
}

func load(o Options) (client.Options, error) {
	options, err := envconfig.LoadDefaultClientOptions()
	if err != nil {
		return client.Options{}, fmt.Errorf("read Temporal's environment and profile: %w", err)
	}
	if o.Address != "" {
		options.HostPort = o.Address
	}
	if o.Namespace != "" {
		options.Namespace = o.Namespace
	}
	if o.Log != nil {
		options.Logger = log.NewStructuredLogger(o.Log)
	}
	if o.CodecKeys != "" {
		keys, err := codec.LoadKeys(o.CodecKeys)
		if err != nil {
			return client.Options{}, err
		}
		options.DataConverter, options.FailureConverter = codec.Converters(codec.New(keys))
	}
	return options, nil
}

// ErrNoWorker says that nothing would be done.
var ErrNoWorker = errors.New("no worker is polling")

// CheckWorker returns ErrNoWorker when no worker polls the task queue for
// workflows: what is started then would wait without a word.
func CheckWorker(ctx context.Context, c client.Client, queue string) error {
	described, err := c.DescribeTaskQueue(ctx, queue, enumspb.TASK_QUEUE_TYPE_WORKFLOW)
	if err != nil {
		return fmt.Errorf("ask for pollers of task queue %s: %w", queue, err)
	}
	if len(described.GetPollers()) == 0 {
		return fmt.Errorf("%w task queue %q; start one with `go run ./worker`, the request will be picked up then", ErrNoWorker, queue)
	}
	return nil
}
