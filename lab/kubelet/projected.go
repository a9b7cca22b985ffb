package kubelet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// file is one file of a projected volume.
type file struct {
	data []byte
	mode fs.FileMode
}

// token is a service account token in a volume, which is renewed in time.
type token struct {
	path       string
	projection *corev1.ServiceAccountTokenProjection
	mode       fs.FileMode
	renew      time.Time
}

const (
	defaultMode     = 0o644
	defaultTokenTTL = int64(3600)
)

// makeProjected collects all files first, then writes them.
func (w *worker) makeProjected(ctx context.Context, pod *corev1.Pod, plugin, name string, mode *int32, sources []corev1.VolumeProjection) (string, error) {
	dir := w.volumeDir(plugin, name)
	files := map[string]file{}
	perm := fs.FileMode(defaultMode)
	if mode != nil {
		perm = fs.FileMode(*mode)
	}
	for i := range sources {
		if err := w.project(ctx, pod, &sources[i], perm, dir, files); err != nil {
			return "", err
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("volume %s: %w", name, err)
	}
	for _, path := range sortedKeys(files) {
		if err := writeFile(filepath.Join(dir, path), files[path]); err != nil {
			return "", err
		}
	}
	return dir, nil
}

func (w *worker) project(ctx context.Context, pod *corev1.Pod, source *corev1.VolumeProjection, perm fs.FileMode, dir string, files map[string]file) error {
	switch {
	case source.Secret != nil:
		optional := isTrue(source.Secret.Optional)
		found, err := w.secret(ctx, pod.Namespace, source.Secret.Name, optional)
		if err != nil {
			return err
		}
		return pick(found.Data, source.Secret.Items, optional, perm, files)
	case source.ConfigMap != nil:
		optional := isTrue(source.ConfigMap.Optional)
		found, err := w.configMap(ctx, pod.Namespace, source.ConfigMap.Name, optional)
		if err != nil {
			return err
		}
		data := map[string][]byte{}
		for key, value := range found.Data {
			data[key] = []byte(value)
		}
		for key, value := range found.BinaryData {
			data[key] = value
		}
		return pick(data, source.ConfigMap.Items, optional, perm, files)
	case source.DownwardAPI != nil:
		return w.projectDownward(pod, source.DownwardAPI.Items, perm, files)
	case source.ServiceAccountToken != nil:
		w.tokens = append(w.tokens, token{
			path: filepath.Join(dir, source.ServiceAccountToken.Path), projection: source.ServiceAccountToken, mode: perm,
		})
		return w.renewToken(ctx, pod, &w.tokens[len(w.tokens)-1])
	default:
		return errors.New("projected: a source is neither secret, configMap, downwardAPI nor serviceAccountToken")
	}
}

// pick chooses the keys that items name, or all.
func pick(data map[string][]byte, items []corev1.KeyToPath, optional bool, perm fs.FileMode, files map[string]file) error {
	if len(items) == 0 {
		for key, value := range data {
			files[key] = file{value, perm}
		}
		return nil
	}
	for _, item := range items {
		value, ok := data[item.Key]
		if !ok {
			if optional {
				continue
			}
			return fmt.Errorf("references non-existent key: %s", item.Key)
		}
		mode := perm
		if item.Mode != nil {
			mode = fs.FileMode(*item.Mode)
		}
		files[item.Path] = file{value, mode}
	}
	return nil
}

func (w *worker) projectDownward(pod *corev1.Pod, items []corev1.DownwardAPIVolumeFile, perm fs.FileMode, files map[string]file) error {
	for i := range items {
		item := &items[i]
		var value string
		var err error
		switch {
		case item.FieldRef != nil:
			value, err = w.field(pod, item.FieldRef.FieldPath)
		case item.ResourceFieldRef != nil:
			value, err = w.resourceField(pod, "", item.ResourceFieldRef)
		}
		if err != nil {
			return err
		}
		mode := perm
		if item.Mode != nil {
			mode = fs.FileMode(*item.Mode)
		}
		files[item.Path] = file{[]byte(value), mode}
	}
	return nil
}

// refreshTokens renews the tokens that have used up four fifths of their life.
func (w *worker) refreshTokens(ctx context.Context, pod *corev1.Pod) {
	for i := range w.tokens {
		t := &w.tokens[i]
		if time.Now().After(t.renew) {
			if err := w.renewToken(ctx, pod, t); err != nil && ctx.Err() == nil {
				w.log.Warn("cannot renew service account token", "error", err)
				t.renew = time.Now().Add(statusRetry)
			}
		}
		w.retryIn(time.Until(t.renew))
	}
}

func (w *worker) renewToken(ctx context.Context, pod *corev1.Pod, t *token) error {
	account := pod.Spec.ServiceAccountName
	if account == "" {
		account = "default"
	}
	ttl := defaultTokenTTL
	if t.projection.ExpirationSeconds != nil {
		ttl = *t.projection.ExpirationSeconds
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: &ttl,
		BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	}}
	if t.projection.Audience != "" {
		request.Spec.Audiences = []string{t.projection.Audience}
	}
	answer, err := w.k.cfg.Client.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, account, request, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("failed to fetch token of service account %s/%s: %w", pod.Namespace, account, err)
	}
	t.renew = time.Now().Add(time.Duration(ttl) * time.Second * 4 / 5)
	return writeFile(t.path, file{[]byte(answer.Status.Token), t.mode})
}

// writeFile replaces a file as a whole: a reader sees the old or the new one.
func writeFile(path string, content file) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("volume file: %w", err)
	}
	temporary := path + ".new"
	if err := os.WriteFile(temporary, content.data, content.mode); err != nil {
		return fmt.Errorf("volume file: %w", err)
	}
	if err := os.Chmod(temporary, content.mode); err != nil {
		return fmt.Errorf("volume file: %w", err)
	}
	if err := os.Rename(temporary, path); err != nil {
		return fmt.Errorf("volume file: %w", err)
	}
	return nil
}
