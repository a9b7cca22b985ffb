package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/operatorservice/v1"
	"go.temporal.io/server/common/config"
	sqliteschema "go.temporal.io/server/schema/sqlite"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"
)

// retention is how long a closed workflow can still be read. The server's own
// default for a new namespace is a day; a week keeps Monday's question about
// Friday's failure answerable.
const retention = 7 * 24 * time.Hour

// prepareDatabase makes what a new file lacks: tables and the namespace.
func prepareDatabase(o options, cfg *config.Config) error {
	sql := sqlConfig(o)
	if err := setupSchema(o.db, sql); err != nil {
		return fmt.Errorf("set up %s: %w", o.db, err)
	}
	namespace, err := sqliteschema.NewNamespaceConfig(cfg.ClusterMetadata.CurrentClusterName, o.namespace, false, o.attributes)
	if err != nil {
		return fmt.Errorf("namespace %s: %w", o.namespace, err)
	}
	namespace.Detail.Config.Retention = durationpb.New(retention)
	if err := sqliteschema.CreateNamespaces(sql, namespace); err != nil {
		return fmt.Errorf("namespace %s in %s: %w", o.namespace, o.db, err)
	}
	return nil
}

// setupSchema writes the tables to a new file under another name first: a
// program killed in between must not leave half a schema behind, which the
// next start would take for a whole one.
func setupSchema(path string, sql *config.SQL) error {
	_, err := os.Stat(path)
	if err == nil {
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	fresh := path + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// No write-ahead log here: the file must be whole when it is renamed.
	if err := sqliteschema.SetupSchema(&config.SQL{
		PluginName:        sql.PluginName,
		DatabaseName:      fresh,
		ConnectAttributes: map[string]string{"mode": "rwc"},
	}); err != nil {
		return err
	}
	return os.Rename(fresh, path)
}

// ensureSearchAttributes adds those that the namespace of an older file lacks.
func ensureSearchAttributes(ctx context.Context, o options) error {
	if len(o.attributes) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	conn, err := grpc.NewClient("passthrough:///"+o.frontend(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("connect to %s: %w", o.frontend(), err)
	}
	defer func() { _ = conn.Close() }()
	operator := operatorservice.NewOperatorServiceClient(conn)
	have, err := operator.ListSearchAttributes(ctx, &operatorservice.ListSearchAttributesRequest{Namespace: o.namespace}, grpc.WaitForReady(true))
	if err != nil {
		return fmt.Errorf("list search attributes: %w", err)
	}
	missing := map[string]enumspb.IndexedValueType{}
	for name, kind := range o.attributes {
		switch found, ok := have.CustomAttributes[name]; {
		case !ok:
			missing[name] = kind
		case found != kind:
			return fmt.Errorf("search attribute %s is %s in %s, %s was asked for: use another name or a new file", name, found, o.db, kind)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	_, err = operator.AddSearchAttributes(ctx, &operatorservice.AddSearchAttributesRequest{Namespace: o.namespace, SearchAttributes: missing})
	if err != nil {
		return fmt.Errorf("add search attributes: %w", err)
	}
	return nil
}
