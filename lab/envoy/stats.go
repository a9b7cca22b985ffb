package envoy

import (
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"sync"
)

// stats are the counters and gauges by their Envoy names.
type stats struct {
	mu     sync.Mutex
	values map[string]int64
}

func newStats() *stats { return &stats{values: map[string]int64{}} }

func (s *stats) add(name string, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values[name] += n
}

func (s *stats) set(name string, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values[name] = n
}

// print writes all that match, in the admin interface's text form.
func (s *stats) print(w io.Writer, texts map[string]string, filter *regexp.Regexp) {
	s.mu.Lock()
	values := maps.Clone(s.values)
	s.mu.Unlock()
	lines := make([]string, 0, len(values)+len(texts))
	for name, value := range values {
		lines = append(lines, fmt.Sprintf("%s: %d\n", name, value))
	}
	for name, text := range texts {
		lines = append(lines, fmt.Sprintf("%s: %q\n", name, text))
	}
	slices.Sort(lines)
	for _, line := range lines {
		if filter == nil || filter.MatchString(line) {
			_, _ = io.WriteString(w, line)
		}
	}
}
