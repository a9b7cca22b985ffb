package world

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// askEvery is how often readiness is asked for.
const askEvery = 50 * time.Millisecond

// eventually asks until the probe succeeds, and tells its last answer when
// that takes too long.
func (w *World) eventually(ctx context.Context, probe func(ctx context.Context) error) error {
	for {
		err := probe(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-w.ctx.Done():
			return errors.Join(w.ctx.Err(), err)
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(askEvery):
		}
	}
}

func nodeReady(ctx context.Context, client kubernetes.Interface, name string) error {
	node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read node %s: %w", name, err)
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
			return nil
		}
	}
	return fmt.Errorf("node %s is not ready: %v", name, node.Status.Conditions)
}
