package kubelet

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"aether.internal/aether/lab/latency"
	"aether.internal/aether/lab/registry"
)

// imageStore holds the images of the node. Pulls are serialized, as is a
// kubelet's default.
type imageStore struct {
	pull func(ctx context.Context, ref string) (*registry.Image, error)
	turn chan struct{}

	mu     sync.Mutex
	images map[string]*registry.Image // by reference as written
}

func newImageStore(pull func(context.Context, string) (*registry.Image, error)) *imageStore {
	return &imageStore{pull: pull, turn: make(chan struct{}, 1), images: map[string]*registry.Image{}}
}

func (s *imageStore) present(ref string) (*registry.Image, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	image, ok := s.images[ref]
	return image, ok
}

// get returns the image, and pulls it unless it is present and may be reused.
func (s *imageStore) get(ctx context.Context, ref string, always bool) (*registry.Image, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case s.turn <- struct{}{}:
	}
	defer func() { <-s.turn }()
	if image, ok := s.present(ref); ok && !always {
		return image, nil
	}
	image, err := s.pull(ctx, ref)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.images[ref] = image
	return image, nil
}

func (s *imageStore) list() []corev1.ContainerImage {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]corev1.ContainerImage, 0, len(s.images))
	for _, image := range s.images {
		list = append(list, corev1.ContainerImage{
			Names: []string{image.Repository + "@" + image.Digest, image.Ref}, SizeBytes: image.SizeBytes,
		})
	}
	slices.SortFunc(list, func(a, b corev1.ContainerImage) int { return strings.Compare(a.Names[0], b.Names[0]) })
	return list
}

// alwaysPulled applies the default of imagePullPolicy.
func alwaysPulled(c *corev1.Container) bool {
	if c.ImagePullPolicy != "" {
		return c.ImagePullPolicy == corev1.PullAlways
	}
	return !strings.Contains(c.Image, "@") && strings.HasSuffix(c.Image, ":latest")
}

// backoff is the exponential wait of a kubelet, on the lab's clock.
type backoff struct {
	wait  time.Duration // the one that was given last
	until time.Time
}

const (
	backoffFirst = 10 * time.Second
	backoffLimit = 5 * time.Minute
	backoffReset = 10 * time.Minute
)

// next begins the next wait, on a clock that may run faster.
func (b *backoff) next(now time.Time, clock *latency.Clock) {
	switch {
	case b.wait == 0 || now.Sub(b.until) > clock.Scale(backoffReset):
		b.wait = backoffFirst
	default:
		b.wait = min(2*b.wait, backoffLimit)
	}
	b.until = now.Add(clock.Scale(b.wait))
}

// left returns how long is still to wait.
func (b *backoff) left(now time.Time) time.Duration { return max(0, b.until.Sub(now)) }

// ensureImage pulls the image of a container if needed. It returns nil while
// the container waits, with the wait in its state.
func (w *worker) ensureImage(ctx context.Context, u *unit) *registry.Image {
	ref := u.spec.Image
	always := alwaysPulled(&u.spec)
	image, present := w.k.images.present(ref)
	if present && !always {
		return image
	}
	if !present && u.spec.ImagePullPolicy == corev1.PullNever {
		w.event(u, corev1.EventTypeWarning, "ErrImageNeverPull", fmt.Sprintf("Container image %q is not present with pull policy of Never", ref))
		u.setWaiting("ErrImageNeverPull", fmt.Sprintf("Container image %q is not present with pull policy of Never", ref))
		return nil
	}
	if left := u.pulls.left(time.Now()); left > 0 {
		w.retryIn(left)
		return nil
	}
	w.event(u, corev1.EventTypeNormal, "Pulling", fmt.Sprintf("Pulling image %q", ref))
	began := time.Now()
	image, err := w.k.images.get(ctx, ref, always)
	if err == nil {
		w.event(u, corev1.EventTypeNormal, "Pulled", fmt.Sprintf("Successfully pulled image %q in %s. Image size: %d bytes.", ref, time.Since(began).Round(time.Millisecond), image.SizeBytes))
		u.pulls = backoff{}
		return image
	}
	if ctx.Err() != nil {
		return nil
	}
	w.event(u, corev1.EventTypeWarning, "Failed", fmt.Sprintf("Failed to pull image %q: %v", ref, err))
	u.setWaiting("ErrImagePull", err.Error())
	w.publish(ctx)
	u.pulls.next(time.Now(), w.k.cfg.Clock)
	message := fmt.Sprintf("Back-off pulling image %q: ErrImagePull: %v", ref, err)
	w.event(u, corev1.EventTypeNormal, "BackOff", fmt.Sprintf("Back-off pulling image %q", ref))
	u.setWaiting("ImagePullBackOff", message)
	w.retryIn(u.pulls.left(time.Now()))
	return nil
}
