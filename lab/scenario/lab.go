package scenario

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"

	"aether.internal/aether/internal/capi"
	"aether.internal/aether/lab/network"
	"aether.internal/aether/lab/proxmox/access"
	"aether.internal/aether/lab/upstream"
	"aether.internal/aether/lab/world"
)

// Speed of the lab's latency table in scenarios.
const Speed = 50

// operatorToken is what the naive halves work with: all rights that the
// origin's operator gave to a tool.
const operatorToken = "aether@pve!operator"

// Lab is the one lab that the scenarios share.
type Lab struct {
	World   *world.World
	Source  string // the checkout
	Product string // folder of the product's programs
	Kube    kubeclient.WithWatch

	dir      string
	operator func() (string, error)
	shared   lazily[*tenant]
	byHand   lazily[*handMade]
	ceph     lazily[*network.Namespace]
	guest    lazily[*network.Namespace]
}

// Start starts the lab with the parts that the scenarios need. Its state is
// kept in dir; progress goes to out.
func Start(ctx context.Context, chosen []Scenario, dir, product string, out io.Writer) (*Lab, error) {
	builder, err := upstream.FromEnvironment(os.Getenv)
	if err != nil {
		return nil, err
	}
	programs, err := builder.Ensure(ctx, out, upstream.Names()...)
	if err != nil {
		return nil, err
	}
	manifests, err := builder.CAPIManifests(ctx)
	if err != nil {
		return nil, err
	}
	w, err := world.Start(ctx, world.Options{
		Dir: dir, Source: builder.Source, Speed: Speed, Programs: programs, CAPI: manifests, Product: product,
		Parts: parts(chosen), Out: out, Log: slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return nil, err
	}
	l := &Lab{World: w, Source: builder.Source, Product: product, dir: dir}
	l.operator = sync.OnceValues(func() (string, error) { return l.token(access.Token{ID: operatorToken}) })
	scheme, err := capi.Scheme()
	if err != nil {
		return nil, err
	}
	if l.Kube, err = kubeclient.NewWithWatch(w.RestConfig(), kubeclient.Options{Scheme: scheme}); err != nil {
		return nil, fmt.Errorf("client of the management cluster: %w", err)
	}
	return l, nil
}

// token makes a Proxmox API token and returns it as USER@REALM!ID=SECRET.
func (l *Lab) token(t access.Token) (string, error) {
	secret, err := l.World.Proxmox.Token(t)
	if err != nil {
		return "", fmt.Errorf("make token %s: %w", t.ID, err)
	}
	return t.ID + "=" + secret, nil
}

// parts is what the scenarios need together; none are all.
func parts(chosen []Scenario) []string {
	var all []string
	for _, s := range chosen {
		if len(s.Parts) == 0 {
			return nil
		}
		for _, p := range s.Parts {
			if !slices.Contains(all, p) {
				all = append(all, p)
			}
		}
	}
	return all
}

// logs is the folder of the lab's logs.
func (l *Lab) logs() string { return filepath.Join(l.dir, "logs") }

// Run runs one scenario and cleans up after it. After a failure it tells all
// there is to know before that.
func (l *Lab) Run(ctx context.Context, s Scenario, dir string, log func(format string, values ...any)) (string, error) {
	t := &T{Lab: l, Name: s.Name, Dir: dir, log: log}
	result, err := s.Run(ctx, t)
	result = strings.Join(strings.Fields(result), " ") // one line
	if err != nil {
		dumpCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dumpTime)
		defer cancel()
		l.dump(dumpCtx, log)
	}
	return result, errors.Join(err, t.end(ctx))
}
