package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// outcome is how a command ended.
type outcome struct {
	Code  int    `json:"code"`
	Error string `json:"error,omitempty"`
}

// Exec runs a command inside the lab, in the platform's network, with the
// given standard files of this process, and returns its exit code. The end of
// ctx ends the command.
//
// The files themselves go over the socket, so that a terminal stays one.
func (c *Client) Exec(ctx context.Context, command Command, stdio [3]*os.File) (int, error) {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: execSocket(c.dir), Net: "unix"})
	if err != nil {
		return 0, c.unreachable(err)
	}
	defer func() { _ = conn.Close() }() // the answer was read, or nobody waits for it
	stop := context.AfterFunc(ctx, func() { _ = conn.CloseWrite() })
	defer stop()
	fds := []int{int(stdio[0].Fd()), int(stdio[1].Fd()), int(stdio[2].Fd())}
	data, err := json.Marshal(command)
	if err != nil {
		return 0, fmt.Errorf("run in the lab: %w", err)
	}
	// The files come with the first byte; the command follows as one line.
	if _, _, err := conn.WriteMsgUnix([]byte{'x'}, unix.UnixRights(fds...), nil); err != nil {
		return 0, fmt.Errorf("run in the lab: %w", err)
	}
	if _, err := conn.Write(append(data, '\n')); err != nil {
		return 0, fmt.Errorf("run in the lab: %w", err)
	}
	var o outcome
	if err := json.NewDecoder(conn).Decode(&o); err != nil {
		return 0, fmt.Errorf("run in the lab: it ended before the command: %w", err)
	}
	if o.Error != "" {
		return o.Code, errors.New(o.Error)
	}
	return o.Code, nil
}

func (s *Server) serveExec(ctx context.Context) {
	for {
		conn, err := s.exec.AcceptUnix()
		if err != nil {
			if ctx.Err() == nil {
				s.log.Error("commands are not accepted any more", "error", err)
			}
			return
		}
		go func() {
			defer func() { _ = conn.Close() }() // the client has its answer or is gone
			if err := json.NewEncoder(conn).Encode(s.execute(ctx, conn)); err != nil {
				s.log.Warn("outcome of a command is lost", "error", err)
			}
		}()
	}
}

func (s *Server) execute(ctx context.Context, conn *net.UnixConn) outcome {
	stdio, err := receiveFiles(conn)
	if err != nil {
		return outcome{Error: err.Error()}
	}
	defer func() {
		for _, f := range stdio {
			_ = f.Close() // the child has its own
		}
	}()
	var command Command
	decoder := json.NewDecoder(conn)
	if err := decoder.Decode(&command); err != nil {
		return outcome{Error: fmt.Sprintf("read command: %v", err)}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		// The client writes no more; the end of its side means it is gone.
		_, _ = io.Copy(io.Discard, conn)
		cancel()
	}()
	code, err := s.world.Exec(ctx, command, stdio)
	if err != nil {
		return outcome{Code: code, Error: err.Error()}
	}
	return outcome{Code: code}
}

// receiveFiles takes the three standard files from the connection.
func receiveFiles(conn *net.UnixConn) ([3]*os.File, error) {
	var stdio [3]*os.File
	first, oob := make([]byte, 1), make([]byte, unix.CmsgSpace(len(stdio)*4))
	_, n, _, _, err := conn.ReadMsgUnix(first, oob)
	if err != nil {
		return stdio, fmt.Errorf("receive files: %w", err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		return stdio, fmt.Errorf("receive files: %w", err)
	}
	if len(messages) != 1 {
		return stdio, fmt.Errorf("receive files: %d control messages came, want 1", len(messages))
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return stdio, fmt.Errorf("receive files: %w", err)
	}
	if len(fds) != len(stdio) {
		return stdio, fmt.Errorf("receive files: %d came, want %d", len(fds), len(stdio))
	}
	for i, name := range []string{"stdin", "stdout", "stderr"} {
		unix.CloseOnExec(fds[i])
		stdio[i] = os.NewFile(uintptr(fds[i]), name)
	}
	return stdio, nil
}
