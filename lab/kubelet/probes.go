package kubelet

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"aether.internal/aether/lab/container"
)

// probing is one probe of one running container.
type probing struct {
	u       *unit
	pod     *corev1.Pod
	kind    string // Startup, Readiness, Liveness
	probe   *corev1.Probe
	running *container.Container

	period    time.Duration
	threshold int
}

// shortestPeriod keeps a fast lab from spending its time on probes.
const shortestPeriod = 500 * time.Millisecond

// startProbes begins the probes of a container that has just started. They end
// with life.
func (u *unit) startProbes(life context.Context, pod *corev1.Pod, running *container.Container) {
	newProbe := func(kind string, probe *corev1.Probe) *probing {
		p := &probing{u: u, pod: pod, kind: kind, probe: probe, running: running}
		p.pace()
		return p
	}
	rest := func() {
		if u.spec.ReadinessProbe != nil {
			u.w.k.running.Go(func() { newProbe("Readiness", u.spec.ReadinessProbe).readiness(life) })
		} else {
			u.setReady(true)
		}
		if u.spec.LivenessProbe != nil {
			u.w.k.running.Go(func() { newProbe("Liveness", u.spec.LivenessProbe).liveness(life) })
		}
	}
	if u.spec.StartupProbe == nil {
		rest()
		return
	}
	u.w.k.running.Go(func() {
		if newProbe("Startup", u.spec.StartupProbe).startup(life) {
			u.setStarted()
			rest()
		}
	})
}

// pace follows the lab's clock but keeps the budget: a probe that may fail for
// 30 seconds may still fail for 30 seconds, it is only asked more often.
func (p *probing) pace() {
	period := time.Duration(max(p.probe.PeriodSeconds, 1)) * time.Second
	threshold := max(p.probe.FailureThreshold, 1)
	p.period = min(period, max(p.u.w.k.cfg.Clock.Scale(period), shortestPeriod))
	p.threshold = int(math.Ceil(float64(threshold) * float64(period) / float64(p.period)))
}

// startup returns true at the first success.
func (p *probing) startup(ctx context.Context) bool {
	return p.repeat(ctx, func(ok bool, failures int) bool {
		if !ok && failures >= p.threshold {
			p.restart(ctx, "failed startup probe")
			return true
		}
		return ok
	})
}

func (p *probing) readiness(ctx context.Context) {
	successes := 0
	p.repeat(ctx, func(ok bool, failures int) bool {
		if ok {
			if successes++; successes >= int(max(p.probe.SuccessThreshold, 1)) {
				p.u.setReady(true)
			}
			return false
		}
		successes = 0
		if failures >= p.threshold || failures == 1 && !p.u.isReady() {
			p.u.setReady(false)
		}
		return false
	})
}

func (p *probing) liveness(ctx context.Context) {
	p.repeat(ctx, func(ok bool, failures int) bool {
		if ok || failures < p.threshold {
			return false
		}
		p.restart(ctx, "failed liveness probe")
		return true
	})
}

func (u *unit) isReady() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.ready
}

// repeat probes until done says so or the container ends. It returns whether
// the last probe succeeded.
func (p *probing) repeat(ctx context.Context, done func(ok bool, failures int) bool) bool {
	if sleep(ctx, p.u.w.k.cfg.Clock.Scale(time.Duration(p.probe.InitialDelaySeconds)*time.Second)) != nil {
		return false
	}
	failures := 0
	ticker := time.NewTicker(p.period)
	defer ticker.Stop()
	for {
		err := p.once(ctx)
		if ctx.Err() != nil {
			return false
		}
		if err == nil {
			failures = 0
		} else if failures++; failures == 1 {
			p.u.w.event(p.u, corev1.EventTypeWarning, "Unhealthy", p.kind+" probe failed: "+err.Error())
		}
		if done(err == nil, failures) {
			return err == nil
		}
		select {
		case <-ctx.Done():
			return false
		case <-ticker.C:
		}
	}
}

// restart kills the container; the restart policy does the rest.
func (p *probing) restart(ctx context.Context, why string) {
	p.u.w.event(p.u, corev1.EventTypeNormal, "Killing", fmt.Sprintf("Container %s %s, will be restarted", p.u.spec.Name, why))
	grace := p.u.w.grace(p.pod)
	if p.probe.TerminationGracePeriodSeconds != nil {
		grace = time.Duration(*p.probe.TerminationGracePeriodSeconds) * time.Second
	}
	// The probe's own context ends with the container that is being stopped.
	stopping := context.WithoutCancel(ctx)
	p.u.w.k.running.Go(func() { p.u.stop(stopping, p.pod, grace) })
}

func (p *probing) once(ctx context.Context) error {
	timeout := time.Duration(max(p.probe.TimeoutSeconds, 1)) * time.Second
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return p.u.check(ctx, p.pod, &p.probe.ProbeHandler, p.running)
}

// check runs one handler of a probe.
func (u *unit) check(ctx context.Context, pod *corev1.Pod, handler *corev1.ProbeHandler, running *container.Container) error {
	switch {
	case handler.HTTPGet != nil:
		return u.httpGet(ctx, handler.HTTPGet)
	case handler.TCPSocket != nil:
		address, err := u.target(handler.TCPSocket.Host, handler.TCPSocket.Port)
		if err != nil {
			return err
		}
		conn, err := u.w.k.cfg.Net.DialContext(ctx, "tcp", address)
		if err != nil {
			return fmt.Errorf("dial tcp %s: %w", address, err)
		}
		return conn.Close()
	case handler.Exec != nil:
		var out strings.Builder
		code, err := running.Exec(ctx, handler.Exec.Command, nil, &out, &out)
		if err != nil {
			return fmt.Errorf("exec in %s/%s: %w", pod.Name, u.spec.Name, err)
		}
		if code != 0 {
			return fmt.Errorf("command exited with %d: %s", code, out.String())
		}
		return nil
	default:
		return fmt.Errorf("container %s: probe has no handler that this kubelet knows: use httpGet, tcpSocket or exec", u.spec.Name)
	}
}

// target returns host and port of a probe; the pod's address by default.
func (u *unit) target(host string, port intstr.IntOrString) (string, error) {
	if host == "" || host == "localhost" && u.w.hostNetwork() {
		host = u.w.address()
	}
	if host == "localhost" {
		host = "127.0.0.1"
	}
	number := port.IntValue()
	if port.Type == intstr.String {
		for i := range u.spec.Ports {
			if u.spec.Ports[i].Name == port.StrVal {
				number = int(u.spec.Ports[i].ContainerPort)
			}
		}
	}
	if number < 1 || number > 65535 {
		return "", fmt.Errorf("port: %q names no port of container %s", port.String(), u.spec.Name)
	}
	return net.JoinHostPort(host, strconv.Itoa(number)), nil
}

func (w *worker) hostNetwork() bool { return w.current().Spec.HostNetwork }

// address is where the pod is reached from its node.
func (w *worker) address() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.podIP == "" {
		return "127.0.0.1" // a node that has told no address
	}
	return w.podIP
}

// httpGet succeeds for every answer from 200 to 399; certificates are not
// checked, as a kubelet does not.
func (u *unit) httpGet(ctx context.Context, get *corev1.HTTPGetAction) error {
	address, err := u.target(get.Host, get.Port)
	if err != nil {
		return err
	}
	scheme := strings.ToLower(string(get.Scheme))
	if scheme == "" {
		scheme = "http"
	}
	target, err := url.Parse(scheme + "://" + address + "/" + strings.TrimPrefix(get.Path, "/"))
	if err != nil {
		return fmt.Errorf("path: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), http.NoBody)
	if err != nil {
		return fmt.Errorf("probe %s: %w", target, err)
	}
	request.Header.Set("User-Agent", "kube-probe/"+u.w.k.cfg.Version)
	for _, header := range get.HTTPHeaders {
		request.Header.Add(header.Name, header.Value)
	}
	transport := &http.Transport{
		DialContext: u.w.k.cfg.Net.DialContext, DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // probes do not verify, by definition
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return fmt.Errorf("Get %q: %w", target, err)
	}
	defer response.Body.Close() //nolint:errcheck // the connection is not used again
	body, err := io.ReadAll(io.LimitReader(response.Body, 512))
	if err != nil {
		return fmt.Errorf("Get %q: %w", target, err)
	}
	if response.StatusCode < 200 || response.StatusCode >= 400 {
		return fmt.Errorf("HTTP probe failed with statuscode: %d: %s", response.StatusCode, strings.TrimSpace(string(body)))
	}
	return nil
}
