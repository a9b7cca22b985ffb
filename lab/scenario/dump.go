package scenario

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// dumpTime bounds the telling of a failure.
const dumpTime = 30 * time.Second

// tailLines is how much of each log is shown after a failure.
const tailLines = 12

// dump tells what there is to know after a failure: VMs, the last lines of the
// lab's logs and consoles, and, where they run, workflows and events.
func (l *Lab) dump(ctx context.Context, log func(format string, values ...any)) {
	for _, vm := range l.World.Proxmox.VMs() {
		if !vm.Template {
			log("VM %d %s on %s: running=%t lock=%q tags=%v", vm.VMID, vm.Name, vm.Node, vm.Running, vm.Lock, vm.Tags)
		}
	}
	l.dumpEvents(ctx, log)
	l.dumpWorkflows(ctx, log)
	files, err := filepath.Glob(filepath.Join(l.logs(), "*.log"))
	if err != nil {
		log("logs: %v", err)
	}
	consoles, err := filepath.Glob(filepath.Join(l.dir, "run", "machines", "*", "*.log"))
	if err != nil {
		log("consoles: %v", err)
	}
	slices.Sort(files)
	for _, file := range slices.Concat(files, consoles) {
		if text := lastLines(file); text != "" {
			log("== %s\n%s", filepath.Base(file), text)
		}
	}
}

// lastLines returns the end of a file, or why there is none.
func lastLines(file string) string {
	data, err := os.ReadFile(file)
	if err != nil {
		return fmt.Sprintf("(%v)", err)
	}
	lines := bytes.Split(bytes.TrimSpace(data), []byte("\n"))
	return strings.TrimSpace(string(bytes.Join(lines[max(0, len(lines)-tailLines):], []byte("\n"))))
}
