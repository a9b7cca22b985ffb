package kubelet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"aether.internal/aether/lab/container"
)

const (
	mountFirst = 500 * time.Millisecond
	mountLimit = 2*time.Minute + 2*time.Second
)

// ensureVolumes makes the pod's volumes, all or none, and keeps its tokens
// fresh. It tells whether the pod can go on.
func (w *worker) ensureVolumes(ctx context.Context, pod *corev1.Pod) bool {
	if w.volumes != nil {
		w.refreshTokens(ctx, pod)
		return true
	}
	if left := w.mounts.left(time.Now()); left > 0 {
		w.retryIn(left)
		return false
	}
	volumes := map[string]string{}
	w.tokens = nil
	for i := range pod.Spec.Volumes {
		volume := &pod.Spec.Volumes[i]
		dir, err := w.makeVolume(ctx, pod, volume)
		if err != nil {
			if ctx.Err() == nil {
				w.event(nil, corev1.EventTypeWarning, "FailedMount", fmt.Sprintf("MountVolume.SetUp failed for volume %q : %v", volume.Name, err))
				w.mounts.wait = min(max(mountFirst, 2*w.mounts.wait), mountLimit)
				w.mounts.until = time.Now().Add(w.k.cfg.Clock.Scale(w.mounts.wait))
				w.retryIn(w.mounts.left(time.Now()))
			}
			return false
		}
		volumes[volume.Name] = dir
	}
	w.volumes, w.mounts = volumes, backoff{}
	w.refreshTokens(ctx, pod)
	return true
}

// volumeDir is where a volume lies, with a real node's layout.
func (w *worker) volumeDir(plugin, name string) string {
	return filepath.Join(w.podDir(), "volumes", "kubernetes.io~"+plugin, name)
}

func (w *worker) makeVolume(ctx context.Context, pod *corev1.Pod, volume *corev1.Volume) (string, error) {
	source := volume.VolumeSource
	switch {
	case source.EmptyDir != nil:
		return w.makeEmptyDir(volume.Name, source.EmptyDir)
	case source.HostPath != nil:
		return w.hostPath(source.HostPath)
	case source.Secret != nil:
		return w.makeProjected(ctx, pod, "secret", volume.Name, source.Secret.DefaultMode, secretSource(source.Secret))
	case source.ConfigMap != nil:
		return w.makeProjected(ctx, pod, "configmap", volume.Name, source.ConfigMap.DefaultMode, configMapSource(source.ConfigMap))
	case source.DownwardAPI != nil:
		one := corev1.VolumeProjection{DownwardAPI: &corev1.DownwardAPIProjection{Items: source.DownwardAPI.Items}}
		return w.makeProjected(ctx, pod, "downward-api", volume.Name, source.DownwardAPI.DefaultMode, []corev1.VolumeProjection{one})
	case source.Projected != nil:
		return w.makeProjected(ctx, pod, "projected", volume.Name, source.Projected.DefaultMode, source.Projected.Sources)
	default:
		return "", errors.New("no volume plugin matched; this kubelet has emptyDir, hostPath, secret, configMap, downwardAPI and projected")
	}
}

func secretSource(s *corev1.SecretVolumeSource) []corev1.VolumeProjection {
	return []corev1.VolumeProjection{{Secret: &corev1.SecretProjection{
		LocalObjectReference: corev1.LocalObjectReference{Name: s.SecretName}, Items: s.Items, Optional: s.Optional,
	}}}
}

func configMapSource(c *corev1.ConfigMapVolumeSource) []corev1.VolumeProjection {
	return []corev1.VolumeProjection{{ConfigMap: &corev1.ConfigMapProjection{
		LocalObjectReference: c.LocalObjectReference, Items: c.Items, Optional: c.Optional,
	}}}
}

func (w *worker) makeEmptyDir(name string, source *corev1.EmptyDirVolumeSource) (string, error) {
	dir := w.volumeDir("empty-dir", name)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return "", fmt.Errorf("emptyDir: %w", err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		return "", fmt.Errorf("emptyDir: %w", err)
	}
	if source.Medium != corev1.StorageMediumMemory {
		return dir, nil
	}
	options := "mode=0777"
	if source.SizeLimit != nil && !source.SizeLimit.IsZero() {
		options += fmt.Sprintf(",size=%d", source.SizeLimit.Value())
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return "", fmt.Errorf("emptyDir: mount tmpfs: %w", err)
	}
	return dir, nil
}

// hostPath maps a path of the node below its root directory.
func (w *worker) hostPath(source *corev1.HostPathVolumeSource) (string, error) {
	path := filepath.Join(w.k.cfg.Dir, filepath.Clean("/"+source.Path))
	kind := corev1.HostPathUnset
	if source.Type != nil {
		kind = *source.Type
	}
	info, err := os.Stat(path)
	missing := errors.Is(err, fs.ErrNotExist)
	switch {
	case err != nil && !missing:
		return "", fmt.Errorf("hostPath: %w", err)
	case missing && (kind == corev1.HostPathUnset || kind == corev1.HostPathDirectoryOrCreate):
		if err := os.MkdirAll(path, 0o755); err != nil {
			return "", fmt.Errorf("hostPath: %w", err)
		}
		return path, nil
	case missing && kind == corev1.HostPathFileOrCreate:
		file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			return "", fmt.Errorf("hostPath: %w", err)
		}
		return path, file.Close()
	case missing, !hostPathIs(info, kind):
		return "", fmt.Errorf("hostPath type check failed: %s is not a %s", source.Path, hostPathName(kind))
	}
	return path, nil
}

func hostPathIs(info fs.FileInfo, kind corev1.HostPathType) bool {
	switch kind {
	case corev1.HostPathDirectory, corev1.HostPathDirectoryOrCreate:
		return info.IsDir()
	case corev1.HostPathFile, corev1.HostPathFileOrCreate:
		return info.Mode().IsRegular()
	case corev1.HostPathSocket:
		return info.Mode()&fs.ModeSocket != 0
	case corev1.HostPathCharDev, corev1.HostPathBlockDev:
		return info.Mode()&fs.ModeDevice != 0
	default:
		return true
	}
}

func hostPathName(kind corev1.HostPathType) string {
	if kind == corev1.HostPathUnset {
		return "file or directory"
	}
	return strings.ToLower(strings.TrimSuffix(string(kind), "OrCreate"))
}

// mountsOf lists the mounts of a container.
func (w *worker) mountsOf(u *unit, env environment) ([]container.Mount, error) {
	mounts := make([]container.Mount, 0, len(u.spec.VolumeMounts)+1)
	for i := range u.spec.VolumeMounts {
		mount := &u.spec.VolumeMounts[i]
		host, ok := w.volumes[mount.Name]
		if !ok {
			return nil, fmt.Errorf("volumeMounts: no volume %q in the pod", mount.Name)
		}
		sub := mount.SubPath
		if mount.SubPathExpr != "" {
			sub = env.expand(mount.SubPathExpr)
		}
		if sub != "" {
			var err error
			if host, err = subPath(host, sub); err != nil {
				return nil, err
			}
		}
		mounts = append(mounts, container.Mount{Host: host, Container: mount.MountPath, ReadOnly: mount.ReadOnly})
	}
	if err := w.nestMounts(mounts); err != nil {
		return nil, err
	}
	message, err := u.makeMessageFile()
	if err != nil {
		return nil, err
	}
	target := u.spec.TerminationMessagePath
	if target == "" {
		target = corev1.TerminationMessagePathDefault
	}
	return append(mounts, container.Mount{Host: message, Container: target}), nil
}

// nestMounts prepares volumes for mounts inside of each other: the outer one may
// be read-only, so the place of the inner one is made in the volume itself. Only
// in the pod's own volumes: a host path is somebody else's.
func (w *worker) nestMounts(mounts []container.Mount) error {
	own := w.podDir() + "/"
	for _, outer := range mounts {
		if !strings.HasPrefix(outer.Host, own) {
			continue
		}
		for _, inner := range mounts {
			below, ok := strings.CutPrefix(filepath.Clean(inner.Container), filepath.Clean(outer.Container)+"/")
			if !ok {
				continue
			}
			if err := makePlace(inner.Host, filepath.Join(outer.Host, below)); err != nil {
				return err
			}
		}
	}
	return nil
}

// makePlace makes an empty file or directory to mount source on.
func makePlace(source, place string) error {
	info, err := os.Stat(source)
	if err != nil {
		return fmt.Errorf("nested mount: %w", err)
	}
	if _, err := os.Lstat(place); err == nil {
		return nil
	}
	dir := place
	if !info.IsDir() {
		dir = filepath.Dir(place)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("nested mount: %w", err)
	}
	if info.IsDir() {
		return nil
	}
	if err := os.WriteFile(place, nil, 0o644); err != nil {
		return fmt.Errorf("nested mount: %w", err)
	}
	return nil
}

// subPath is a file or directory inside of a volume; a missing one is made a
// directory.
func subPath(volume, sub string) (string, error) {
	if filepath.IsAbs(sub) || slices.Contains(strings.Split(sub, "/"), "..") {
		return "", fmt.Errorf("subPath: %q must be a relative path without ..", sub)
	}
	path := filepath.Join(volume, sub)
	_, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		err = os.MkdirAll(path, 0o750)
	}
	if err != nil {
		return "", fmt.Errorf("subPath %q: %w", sub, err)
	}
	return path, nil
}

func (u *unit) makeMessageFile() (string, error) {
	path := u.messageFile()
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return "", fmt.Errorf("termination message: %w", err)
	}
	if err := os.WriteFile(path, nil, 0o666); err != nil {
		return "", fmt.Errorf("termination message: %w", err)
	}
	return path, nil
}

// unmountVolumes unmounts the memory-backed volumes below a pod's directory.
func unmountVolumes(dir string) error {
	found, err := filepath.Glob(filepath.Join(dir, "volumes", "kubernetes.io~empty-dir", "*"))
	if err != nil {
		return fmt.Errorf("list volumes in %s: %w", dir, err)
	}
	var errs []error
	for _, mount := range found {
		// EINVAL: the volume is on disk and was never mounted.
		if err := unix.Unmount(mount, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			errs = append(errs, fmt.Errorf("unmount %s: %w", mount, err))
		}
	}
	return errors.Join(errs...)
}

// removeVolumes removes a pod's directory with all that is in it.
func removeVolumes(dir string) error {
	if err := unmountVolumes(dir); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove pod directory: %w", err)
	}
	return nil
}
