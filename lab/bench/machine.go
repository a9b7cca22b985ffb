package bench

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// thisMachine describes where the measurement runs.
func thisMachine() (Machine, error) {
	m := Machine{CPUs: runtime.NumCPU(), Processor: "unknown"}
	var name unix.Utsname
	var info unix.Sysinfo_t
	if err := unix.Uname(&name); err != nil {
		return m, fmt.Errorf("look at the machine: %w", err)
	}
	if err := unix.Sysinfo(&info); err != nil {
		return m, fmt.Errorf("look at the machine: %w", err)
	}
	m.Kernel = unix.ByteSliceToString(name.Release[:])
	m.MemoryMiB = int64(info.Totalram) * int64(info.Unit) >> 20 //nolint:gosec // a machine's memory
	data, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return m, fmt.Errorf("look at the machine: %w", err)
	}
	for line := range bytes.Lines(data) {
		if key, value, ok := strings.Cut(string(line), ":"); ok && strings.TrimSpace(key) == "model name" {
			m.Processor = strings.TrimSpace(value)
			break
		}
	}
	return m, nil
}

// load is the machine's load average over the last minute.
func load() (float64, error) {
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0, fmt.Errorf("look at the load: %w", err)
	}
	first, _, _ := strings.Cut(string(data), " ")
	value, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return 0, fmt.Errorf("look at the load: %w", err)
	}
	return value, nil
}
