package relay

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"time"
)

// Dial makes a connection inside the lab.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// maxSocketPath is how long the path of a Unix socket can be.
const maxSocketPath = 107

// Listen opens the socket at which the sides meet. What is left there of a lab
// that was killed is removed.
func Listen(socket string) (net.Listener, error) {
	if len(socket) > maxSocketPath {
		return nil, fmt.Errorf("socket: %q has %d characters; the kernel allows %d; use a shorter directory for the lab", socket, len(socket), maxSocketPath)
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove old relay socket: %w", err)
	}
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("open relay socket: %w", err)
	}
	// Whoever may open it is in the lab.
	if err := os.Chmod(socket, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("protect relay socket: %w", err), listener.Close())
	}
	return listener, nil
}

// Serve is the inside: it connects those who come to the listener with what
// they want, until ctx ends.
func Serve(ctx context.Context, listener net.Listener, dial Dial, log *slog.Logger) error {
	conns := &live{}
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() }) // Accept tells
	defer stop()
	defer conns.end()
	return conns.serve(listener, func(c net.Conn) {
		if err := connect(ctx, c, dial, conns); err != nil {
			log.Debug("relay refuses", "error", err)
		}
	})
}

// connect serves one connection from outside.
func connect(ctx context.Context, outside net.Conn, dial Dial, conns *live) error {
	if err := outside.SetDeadline(time.Now().Add(lineTime)); err != nil {
		return fmt.Errorf("set deadline: %w", err)
	}
	reader := bufio.NewReaderSize(outside, maxLine)
	target, err := readLine(reader)
	if err != nil {
		return fmt.Errorf("read target: %w", err)
	}
	if err := checkTarget(target); err != nil {
		return errors.Join(err, answer(outside, err.Error()))
	}
	ctx, cancel := context.WithTimeout(ctx, lineTime)
	defer cancel()
	inside, err := dial(ctx, "tcp", target)
	if err != nil {
		return errors.Join(err, answer(outside, err.Error()))
	}
	if !conns.add(inside) {
		return inside.Close()
	}
	defer conns.remove(inside)
	if err := errors.Join(answer(outside, answerOK), outside.SetDeadline(time.Time{})); err != nil {
		return err
	}
	join(buffered{outside, reader}, inside)
	return nil
}

func answer(to net.Conn, line string) error {
	if len(line) >= maxLine {
		line = line[:maxLine-1]
	}
	if _, err := fmt.Fprintln(to, line); err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	return nil
}
