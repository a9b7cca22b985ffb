package kubelet

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"aether.internal/aether/lab/container"
	"aether.internal/aether/lab/latency"
	"aether.internal/aether/lab/registry"
)

// labProgram is the key of the lab's own binary in the table of programs.
const labProgram = "lab"

// SpeedVariable tells the lab's own programs the speed of its clock.
const SpeedVariable = "AETHER_LAB_SPEED"

// exitCannotStart is what a runtime reports for a container that did not come up.
const exitCannotStart = 128

// start runs a container once and follows it to its end.
func (w *worker) start(ctx context.Context, pod *corev1.Pod, u *unit, image *registry.Image) {
	spec, err := w.containerSpec(ctx, pod, u, image)
	if err != nil {
		if ctx.Err() != nil {
			return
		}
		w.event(u, corev1.EventTypeWarning, "Failed", "Error: "+err.Error())
		u.setWaiting("CreateContainerConfigError", err.Error())
		w.retryIn(w.k.cfg.Clock.Scale(backoffFirst))
		return
	}
	if w.k.cfg.Clock.Sleep(ctx, latency.ContainerStart, 1) != nil {
		return
	}
	u.noteRestart(time.Now())
	w.event(u, corev1.EventTypeNormal, "Created", "Container created")
	u.launch(ctx, pod, spec, image)
}

// launch starts the process. Its life does not depend on the sync that started
// it: the worker ends it.
func (u *unit) launch(ctx context.Context, pod *corev1.Pod, spec container.Spec, image *registry.Image) {
	u.mu.Lock()
	u.image, u.id = image, spec.ID
	attempt := u.attempt
	u.attempt++
	if !u.finished.IsZero() {
		u.restarts++
	}
	u.mu.Unlock()
	log, err := openLog(u.logPath(pod, attempt))
	if err != nil {
		u.recordEnd(exitCannotStart, "StartError", err.Error(), time.Now())
		return
	}
	spec.Stdout, spec.Stderr = log.stream("stdout"), log.stream("stderr")
	began := time.Now()
	running, err := u.w.k.cfg.Containers.Run(context.WithoutCancel(ctx), spec)
	if err != nil {
		log.close()
		u.w.event(u, corev1.EventTypeWarning, "Failed", "Error: "+err.Error())
		u.recordEnd(exitCannotStart, "StartError", err.Error(), began)
		return
	}
	started := now()
	ended := make(chan struct{})
	u.mu.Lock()
	u.running, u.ended, u.began = running, ended, began
	if u.state.Terminated != nil {
		u.last = corev1.ContainerState{Terminated: u.state.Terminated}
	}
	u.state = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: started}}
	u.started = u.spec.StartupProbe == nil
	u.ready = u.started && u.spec.ReadinessProbe == nil
	u.mu.Unlock()
	u.w.event(u, corev1.EventTypeNormal, "Started", "Container started")
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	u.w.k.running.Go(func() {
		defer close(ended)
		code, err := running.Wait()
		stop()
		log.close()
		u.recordEnd(code, reasonOf(code, err), u.terminationMessage(pod, attempt, code), began)
		u.w.poke()
	})
	u.runHook(life, pod, u.postStart(), running)
	u.startProbes(life, pod, running)
}

func reasonOf(code int, err error) string {
	switch {
	case err != nil:
		return "ContainerStatusUnknown"
	case code == 0:
		return "Completed"
	default:
		return "Error"
	}
}

// recordEnd notes how the container ended.
func (u *unit) recordEnd(code int, reason, message string, began time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.state.Terminated != nil {
		u.last = corev1.ContainerState{Terminated: u.state.Terminated}
	}
	start := now()
	start.Time = began.Truncate(time.Second)
	u.state = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		ExitCode: int32(code), Reason: reason, Message: message,
		StartedAt: start, FinishedAt: now(), ContainerID: "containerd://" + u.id,
	}}
	u.running, u.ready, u.started = nil, false, false
	u.finished = time.Now()
	u.w.poke()
}

const messageLimit = 4096

// terminationMessage reads what the container left at its message path, or the
// end of its log if it failed and asks for that.
func (u *unit) terminationMessage(pod *corev1.Pod, attempt, code int) string {
	data, err := os.ReadFile(u.messageFile())
	if err == nil && len(data) > 0 {
		return string(data[:min(len(data), messageLimit)])
	}
	if code == 0 || u.spec.TerminationMessagePolicy != corev1.TerminationMessageFallbackToLogsOnError {
		return ""
	}
	tail, err := tailOf(u.logPath(pod, attempt), 80)
	if err != nil {
		return "" // there is no log to fall back to
	}
	return tail[max(0, len(tail)-messageLimit/2):]
}

func (u *unit) messageFile() string {
	return path.Join(u.w.podDir(), "containers", u.spec.Name, "termination-log")
}

// containerSpec puts together everything a container needs.
func (w *worker) containerSpec(ctx context.Context, pod *corev1.Pod, u *unit, image *registry.Image) (container.Spec, error) {
	env, err := w.environment(ctx, pod, u, image)
	if err != nil {
		return container.Spec{}, err
	}
	argv, err := commandLine(&u.spec, image, env)
	if err != nil {
		return container.Spec{}, err
	}
	program, err := w.program(argv[0], image)
	if err != nil {
		return container.Spec{}, err
	}
	if program == w.k.cfg.Programs[labProgram] {
		env.set(SpeedVariable, strconv.FormatFloat(w.k.cfg.Clock.Speed(), 'g', -1, 64))
	}
	mounts, err := w.mountsOf(u, env)
	if err != nil {
		return container.Spec{}, err
	}
	id := make([]byte, 32)
	if _, err := rand.Read(id); err != nil {
		return container.Spec{}, fmt.Errorf("container ID: %w", err)
	}
	return container.Spec{
		ID: hex.EncodeToString(id), Program: program, Args: argv, Env: env.list(), Dir: u.spec.WorkingDir, Mounts: mounts,
		Net: w.sandbox.net, Hostname: w.hostname(pod), Hosts: w.hosts(pod), ResolvConf: w.resolvConf(pod),
	}, nil
}

// commandLine applies the rules of command and args over the image's.
func commandLine(spec *corev1.Container, image *registry.Image, env environment) ([]string, error) {
	command, args := spec.Command, spec.Args
	if len(command) == 0 {
		command = image.Entrypoint
		if len(args) == 0 {
			args = image.Cmd
		}
	}
	argv := make([]string, 0, len(command)+len(args))
	for _, word := range slices.Concat(command, args) {
		argv = append(argv, env.expand(word))
	}
	if len(argv) == 0 || argv[0] == "" {
		return nil, errors.New("no command specified")
	}
	return argv, nil
}

// ErrNoExecutable says that an image does not hold what a pod wants to run.
var ErrNoExecutable = errors.New("executable file not found in $PATH")

// program finds the executable behind a command of an image.
func (w *worker) program(command string, image *registry.Image) (string, error) {
	name := path.Base(command)
	key := labProgram
	switch {
	case slices.Contains(image.Commands, name):
		key = image.Program
	case !slices.Contains(toybox(), name):
		return "", fmt.Errorf("exec: %q: %w; image %s holds %v", command, ErrNoExecutable, image.Ref, image.Commands)
	}
	program, ok := w.k.cfg.Programs[key]
	if !ok {
		return "", fmt.Errorf("image %s: its program %q is not in the lab's table of programs", image.Ref, key)
	}
	return program, nil
}

// toybox lists the small programs that every container of the lab has.
func toybox() []string {
	return []string{"echo", "cat", "ls", "env", "hostname", "sleep", "nc", "ifaddr", "sh", "toybox"}
}

func (w *worker) hostname(pod *corev1.Pod) string {
	switch {
	case pod.Spec.HostNetwork:
		return w.k.cfg.NodeName
	case pod.Spec.Hostname != "":
		return pod.Spec.Hostname
	default:
		return pod.Name[:min(len(pod.Name), 63)]
	}
}

func (w *worker) hosts(pod *corev1.Pod) map[string]string {
	hosts := map[string]string{}
	for name, address := range w.k.cfg.Hosts {
		hosts[name] = address
	}
	for _, alias := range pod.Spec.HostAliases {
		for _, name := range alias.Hostnames {
			hosts[name] = alias.IP
		}
	}
	if w.sandbox.podIP != "" {
		hosts[w.hostname(pod)] = w.sandbox.podIP
	}
	return hosts
}

// resolvConf applies the pod's DNS policy.
func (w *worker) resolvConf(pod *corev1.Pod) string {
	servers, searches, options := w.k.cfg.Nameservers, []string{}, []string{}
	policy := pod.Spec.DNSPolicy
	cluster := policy == corev1.DNSClusterFirstWithHostNet || policy != corev1.DNSDefault && policy != corev1.DNSNone && !pod.Spec.HostNetwork
	if cluster && len(w.k.cfg.ClusterDNS) > 0 {
		domain := w.k.cfg.ClusterDomain
		servers = w.k.cfg.ClusterDNS
		searches = []string{pod.Namespace + ".svc." + domain, "svc." + domain, domain}
		options = []string{"ndots:5"}
	}
	if policy == corev1.DNSNone {
		servers = nil
	}
	if own := pod.Spec.DNSConfig; own != nil {
		servers = append(slices.Clip(servers), own.Nameservers...)
		searches = append(searches, own.Searches...)
		for _, option := range own.Options {
			text := option.Name
			if option.Value != nil {
				text += ":" + *option.Value
			}
			options = append(options, text)
		}
	}
	var conf strings.Builder
	for _, server := range servers {
		fmt.Fprintf(&conf, "nameserver %s\n", server)
	}
	if len(searches) > 0 {
		fmt.Fprintf(&conf, "search %s\n", strings.Join(searches, " "))
	}
	if len(options) > 0 {
		fmt.Fprintf(&conf, "options %s\n", strings.Join(options, " "))
	}
	return conf.String()
}
