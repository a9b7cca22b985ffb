package kubelet

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// containerLog writes what one run of a container says, in the format of the
// container runtime interface: time, stream, F for a full line, text.
type containerLog struct {
	mu   sync.Mutex
	file *os.File
	open []*logStream
}

// logStream cuts one stream into lines.
type logStream struct {
	log  *containerLog
	name string
	part []byte
}

func openLog(path string) (*containerLog, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, fmt.Errorf("container log: %w", err)
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return nil, fmt.Errorf("container log: %w", err)
	}
	return &containerLog{file: file}, nil
}

func (l *containerLog) stream(name string) io.Writer {
	s := &logStream{log: l, name: name}
	l.open = append(l.open, s)
	return s
}

const longestLine = 16 << 10

// Write implements io.Writer.
func (s *logStream) Write(data []byte) (int, error) {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	s.part = append(s.part, data...)
	for {
		end := bytes.IndexByte(s.part, '\n')
		tag := "F"
		if end < 0 {
			if len(s.part) < longestLine {
				return len(data), nil
			}
			end, tag = longestLine-1, "P"
		}
		line := s.part[:end]
		if tag == "P" {
			line = s.part[:end+1]
		}
		if err := s.log.line(s.name, tag, line); err != nil {
			return 0, err
		}
		s.part = s.part[end+1:]
	}
}

func (l *containerLog) line(stream, tag string, text []byte) error {
	stamp := time.Now().Format(time.RFC3339Nano)
	if _, err := fmt.Fprintf(l.file, "%s %s %s %s\n", stamp, stream, tag, text); err != nil {
		return fmt.Errorf("container log: %w", err)
	}
	return nil
}

// close writes what has no end of line yet and ends the log.
func (l *containerLog) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.open {
		if len(s.part) > 0 {
			_ = l.line(s.name, "P", s.part) // a full disk loses the last words
		}
	}
	_ = l.file.Close() // nothing is buffered
}

// logOptions are the choices of a reader.
type logOptions struct {
	follow     bool
	timestamps bool
	tail       int // lines from the end; below 0 is all
	since      time.Time
	limit      int64 // bytes; 0 is no limit
}

// errLimit ends a read that has reached its limit.
var errLimit = errors.New("limit reached")

// readLog copies a log to out. While running tells that more may come it is
// followed, if asked for.
func readLog(ctx context.Context, path string, o logOptions, ended <-chan struct{}, out io.Writer) error {
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	defer file.Close() //nolint:errcheck // only read
	if o.tail >= 0 {
		if err := seekTail(file, o.tail); err != nil {
			return err
		}
	}
	printer := &logPrinter{options: o, out: out, left: o.limit}
	reader := bufio.NewReader(file)
	var rest string
	for final := false; ; {
		text, err := reader.ReadString('\n')
		rest += text
		if err == nil {
			if err := printer.print(rest); err != nil {
				return ignoreLimit(err)
			}
			rest = ""
			continue
		}
		if !errors.Is(err, io.EOF) {
			return fmt.Errorf("read log: %w", err)
		}
		if !o.follow || final {
			return nil
		}
		final = awaitMore(ctx, ended)
		if ctx.Err() != nil {
			return nil
		}
	}
}

func ignoreLimit(err error) error {
	if errors.Is(err, errLimit) {
		return nil
	}
	return err
}

const followPause = 100 * time.Millisecond

// awaitMore waits until there may be more, and tells whether it is the last.
func awaitMore(ctx context.Context, ended <-chan struct{}) bool {
	timer := time.NewTimer(followPause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-ended:
		return true
	case <-timer.C:
	}
	return false
}

// logPrinter turns stored lines into what the reader asked for.
type logPrinter struct {
	options logOptions
	out     io.Writer
	left    int64
}

func (p *logPrinter) print(stored string) error {
	stamp, rest, ok := strings.Cut(strings.TrimSuffix(stored, "\n"), " ")
	_, tagged, ok2 := strings.Cut(rest, " ")
	tag, text, ok3 := strings.Cut(tagged, " ")
	if !ok || !ok2 || !ok3 {
		return nil // cut off by a power failure
	}
	if at, err := time.Parse(time.RFC3339Nano, stamp); err == nil && at.Before(p.options.since) {
		return nil
	}
	if tag == "F" {
		text += "\n"
	}
	if p.options.timestamps {
		text = stamp + " " + text
	}
	if p.options.limit > 0 {
		text = text[:min(int64(len(text)), p.left)]
		p.left -= int64(len(text))
	}
	if _, err := io.WriteString(p.out, text); err != nil {
		return fmt.Errorf("write log: %w", err)
	}
	if p.options.limit > 0 && p.left == 0 {
		return errLimit
	}
	return nil
}

// seekTail moves to the beginning of the last lines of a file.
func seekTail(file *os.File, lines int) error {
	const block = 4096
	end, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("read log: %w", err)
	}
	buffer := make([]byte, block)
	missing := lines + 1 // the last line ends with a line break, too
	for at := end; at > 0; {
		size := min(at, block)
		at -= size
		if _, err := file.ReadAt(buffer[:size], at); err != nil {
			return fmt.Errorf("read log: %w", err)
		}
		for i := size - 1; i >= 0; i-- {
			if buffer[i] != '\n' {
				continue
			}
			if missing--; missing == 0 {
				_, err := file.Seek(at+i+1, io.SeekStart)
				return err
			}
		}
	}
	_, err = file.Seek(0, io.SeekStart)
	return err
}

// tailOf returns the last lines of a log as text.
func tailOf(path string, lines int) (string, error) {
	var out strings.Builder
	ended := make(chan struct{})
	close(ended)
	err := readLog(context.Background(), path, logOptions{tail: lines}, ended, &out)
	return out.String(), err
}
