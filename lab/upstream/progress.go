package upstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// tailLines is how much of a failed build's output an error carries.
const tailLines = 40

// progress tells a person on out how a build goes. As a writer it takes the
// output of go build -v: one line per package, and the errors.
type progress struct {
	out   io.Writer
	what  string
	every time.Duration

	mu      sync.Mutex
	started time.Time
	partial []byte
	last    []string
	count   int
}

// begin says what is built and how long that takes.
func (p *progress) begin(expect string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.started = time.Now()
	fmt.Fprintf(p.out, "upstream: building %s (first time here; %s on 2 idle cores)\n", p.what, expect)
}

// tick prints a line every now and then until the returned function is called.
func (p *progress) tick() (stop func()) {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		t := time.NewTicker(p.every)
		defer t.Stop()
		for {
			select {
			case <-end:
				return
			case <-t.C:
				p.line()
			}
		}
	}()
	return func() { close(end); <-ended }
}

func (p *progress) line() {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := ""
	if n := len(p.last); n > 0 {
		at = fmt.Sprintf(", %d packages compiled, now %s", p.count, p.last[n-1])
	}
	fmt.Fprintf(p.out, "upstream: building %s: %s%s\n", p.what, time.Since(p.started).Round(time.Second), at)
}

// done says how long it took.
func (p *progress) done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.out, "upstream: built %s in %s\n", p.what, time.Since(p.started).Round(100*time.Millisecond))
}

// waiting says that another process builds.
func (p *progress) waiting(since time.Time) {
	fmt.Fprintf(p.out, "upstream: %s waits behind another build: %s\n", p.what, time.Since(since).Round(time.Second))
}

// Write takes output of the build.
func (p *progress) Write(data []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.partial = append(p.partial, data...)
	for {
		line, rest, found := bytes.Cut(p.partial, []byte("\n"))
		if !found {
			return len(data), nil
		}
		p.last = append(p.last, string(line))
		if len(p.last) > tailLines {
			p.last = p.last[1:]
		}
		p.count++
		p.partial = rest
	}
}

// tail is the end of the output.
func (p *progress) tail() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(append(p.last, string(p.partial)), "\n")
}

// lock takes the file lock; the kernel frees it when the process dies.
func lock(ctx context.Context, path string, told *progress) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	since := time.Now()
	said := since
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			_ = f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if time.Since(said) >= told.every {
			told.waiting(since)
			said = time.Now()
		}
		select {
		case <-ctx.Done():
			_ = f.Close()
			return nil, fmt.Errorf("wait for the build lock %s: %w", path, ctx.Err())
		case <-time.After(200 * time.Millisecond):
		}
	}
}
