package command

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"

	"aether.internal/aether/internal/capi"
	"aether.internal/aether/internal/config"
	"aether.internal/aether/internal/temporalclient"
	"aether.internal/aether/workflows"
)

// temporal is an open connection to Temporal.
type temporal struct {
	client.Client
	processes *temporalclient.Processes
	payloads  converter.DataConverter
}

func openTemporal(ctx context.Context, options *config.Options) (*temporal, error) {
	how := options.Temporal(slog.New(slog.DiscardHandler))
	payloads, err := how.Converter()
	if err != nil {
		return nil, err
	}
	c, err := temporalclient.Dial(ctx, how)
	if err != nil {
		return nil, err
	}
	return &temporal{Client: c, processes: temporalclient.NewProcesses(c, workflows.TaskQueue), payloads: payloads}, nil
}

// warnNoWorker says at once when nothing would happen.
func (t *temporal) warnNoWorker(ctx context.Context, s streams) error {
	err := temporalclient.CheckWorker(ctx, t.Client, workflows.TaskQueue)
	if errors.Is(err, temporalclient.ErrNoWorker) {
		_, err = fmt.Fprintln(s.err, "warning:", err)
	}
	return err
}

// openKube opens the management cluster.
func openKube(options *config.Options) (kubeclient.WithWatch, error) {
	restConfig, err := options.RestConfig()
	if err != nil {
		return nil, err
	}
	scheme, err := capi.Scheme()
	if err != nil {
		return nil, err
	}
	kube, err := kubeclient.NewWithWatch(restConfig, kubeclient.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("management cluster: %w", err)
	}
	return kube, nil
}
