package kubelet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"
)

const (
	streamIdle     = 4 * time.Hour
	streamCreation = remotecommand.DefaultStreamCreationTimeout
)

// exec runs a command in a container over SPDY or WebSocket streams.
func (s *server) exec(w http.ResponseWriter, r *http.Request) {
	_, u, ok := s.unitFor(w, r)
	if !ok {
		return
	}
	options, err := remotecommand.NewOptions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	command := r.URL.Query()["command"]
	if len(command) == 0 {
		http.Error(w, "command: give at least one word to execute", http.StatusBadRequest)
		return
	}
	remotecommand.ServeExec(
		w, r, executor{u}, r.PathValue("pod"), r.PathValue("uid"), u.spec.Name, command,
		options, streamIdle, streamCreation, remotecommand.SupportedStreamingProtocols,
	)
}

// executor runs commands in one container.
type executor struct{ u *unit }

var errNotRunning = errors.New("container is not running")

// ExecInContainer implements remotecommand.Executor. There is no terminal in
// the lab: with tty set the command gets pipes, and resizes are drained.
func (e executor) ExecInContainer(ctx context.Context, _, _, name string, cmd []string, in io.Reader, out, errOut io.WriteCloser, _ bool, resize <-chan remotecommand.TerminalSize, _ time.Duration) error {
	e.u.mu.Lock()
	running := e.u.running
	e.u.mu.Unlock()
	if running == nil {
		return fmt.Errorf("container %s: %w", name, errNotRunning)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if resize != nil {
		go drain(ctx, resize)
	}
	stdout, stderr := orDiscard(out), orDiscard(errOut)
	if errOut == nil {
		stderr = stdout // a terminal has one stream for both
	}
	code, err := running.Exec(ctx, cmd, in, stdout, stderr)
	if err != nil {
		return fmt.Errorf("OCI runtime exec failed: %w", err)
	}
	if code != 0 {
		return utilexec.CodeExitError{Err: fmt.Errorf("command terminated with exit code %d", code), Code: code}
	}
	return nil
}

func drain(ctx context.Context, resize <-chan remotecommand.TerminalSize) {
	for {
		select {
		case <-ctx.Done():
			return
		case _, more := <-resize:
			if !more {
				return
			}
		}
	}
}

func orDiscard(w io.WriteCloser) io.Writer {
	if w == nil {
		return io.Discard
	}
	return w
}

// portForward connects streams to ports of a pod.
func (s *server) portForward(w http.ResponseWriter, r *http.Request) {
	found, ok := s.k.find(r.PathValue("namespace"), r.PathValue("pod"), types.UID(r.PathValue("uid")))
	if !ok {
		http.Error(w, "pod does not exist on this node", http.StatusNotFound)
		return
	}
	options, err := portforward.NewV4Options(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	pod := found.current()
	portforward.ServePortForward(
		w, r, forwarder{found}, pod.Name, string(pod.UID), options,
		streamIdle, streamCreation, portforward.SupportedProtocols,
	)
}

// forwarder connects to one pod.
type forwarder struct{ w *worker }

// PortForward implements portforward.PortForwarder.
func (f forwarder) PortForward(ctx context.Context, _, _ string, port int32, stream io.ReadWriteCloser) error {
	inside := f.w.network()
	if inside == nil {
		return errNotRunning
	}
	conn, err := inside.DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
	if err != nil {
		return fmt.Errorf("forward to port %d: %w", port, err)
	}
	defer conn.Close() //nolint:errcheck // both directions have ended
	go func() {
		_, err := io.Copy(conn, stream)
		if half, ok := conn.(*net.TCPConn); ok && err == nil {
			_ = half.CloseWrite() // the other side has closed before
		}
	}()
	_, err = io.Copy(stream, conn)
	return errors.Join(err, stream.Close())
}
