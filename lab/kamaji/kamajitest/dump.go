package kamajitest

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const dumpLines = 15

// DumpOnFailure logs, when the test has failed, the pods of a namespace with
// their containers' states, its events, and the end of each container's log.
func (w *World) DumpOnFailure(namespace string) {
	w.t.Cleanup(func() {
		if w.t.Failed() {
			w.dump(context.WithoutCancel(w.t.Context()), namespace)
		}
	})
}

func (w *World) dump(ctx context.Context, namespace string) {
	pods, events := &corev1.PodList{}, &corev1.EventList{}
	for _, list := range []client.ObjectList{pods, events} {
		if err := w.API.List(ctx, list, client.InNamespace(namespace)); err != nil {
			w.t.Log(err)
		}
	}
	for _, pod := range pods.Items {
		w.t.Logf("pod %s: %s at %s", pod.Name, pod.Status.Phase, pod.Status.PodIP)
		for _, c := range pod.Status.ContainerStatuses {
			w.t.Logf("  %s: ready=%t restarts=%d state=%+v last=%+v", c.Name, c.Ready, c.RestartCount, c.State, c.LastTerminationState)
		}
	}
	for _, event := range events.Items {
		w.t.Logf("event %s %s: %s", event.InvolvedObject.Name, event.Reason, event.Message)
	}
	if w.nodeDir == "" {
		return
	}
	logs := os.DirFS(filepath.Join(w.nodeDir, "var/log/pods"))
	err := fs.WalkDir(logs, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := fs.ReadFile(logs, path)
		lines := strings.Split(strings.TrimSpace(string(data)), "\n")
		w.t.Logf("log %s:\n%s", path, strings.Join(lines[max(0, len(lines)-dumpLines):], "\n"))
		return err
	})
	if err != nil {
		w.t.Log(err)
	}
}
