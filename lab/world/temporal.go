package world

import (
	"context"
	"path/filepath"

	"aether.internal/aether/lab/temporal"
	"aether.internal/aether/lab/upstream"
)

// temporalDir keeps the server's SQLite file.
func (w *World) temporalDir() string { return filepath.Join(w.opts.Dir, "run", partTemporal) }

func (w *World) startTemporal(ctx context.Context) error {
	log, err := w.logger(partTemporal)
	if err != nil {
		return err
	}
	codec := ""
	if address := w.opts.Outside[ForwardCodec]; address != "" {
		codec = "http://" + address
	}
	server, err := temporal.Start(ctx, temporal.Config{
		Program: w.opts.Programs[upstream.Temporal], Dir: w.temporalDir(), Net: w.Fabric.Platform(), CodecEndpoint: codec, Log: log,
	})
	if err != nil {
		return err
	}
	w.Temporal = server
	if err := w.linkLog("temporal-server", server.LogFile()); err != nil {
		return err
	}
	w.supervise(&component{
		name: partTemporal, address: server.HostPort(), logFile: server.LogFile(), process: server.Process,
		kill: server.Kill, restart: server.Restart, stop: server.Stop,
	})
	return nil
}
