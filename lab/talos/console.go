package talos

import (
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"
)

// console is the serial console. Lines of the parts that run side by side do
// not mix.
type console struct {
	mu sync.Mutex
	to io.Writer
}

func newConsole(to io.Writer) *console {
	if to == nil {
		to = io.Discard
	}
	return &console{to: to}
}

// talos writes a line as machined does.
func (c *console) talos(format string, args ...any) {
	c.line("[talos] " + fmt.Sprintf(format, args...))
}

// kubelet writes a line as the kubelet does.
func (c *console) kubelet(format string, args ...any) {
	c.line("kubelet: " + fmt.Sprintf(format, args...))
}

func (c *console) line(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	// A console that cannot be written to is a cut cable: the machine goes on.
	_, _ = fmt.Fprintf(c.to, "%s %s\n", time.Now().UTC().Format("2006-01-02T15:04:05.000Z"), text)
}

// Write lets a logger write to the console.
func (c *console) Write(text []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.to.Write(text)
}

// logger is for the libraries inside the kubelet.
func (c *console) logger(part string) *slog.Logger {
	return slog.New(slog.NewTextHandler(c, &slog.HandlerOptions{Level: slog.LevelInfo})).With("part", part)
}
