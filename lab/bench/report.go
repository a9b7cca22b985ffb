package bench

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"aether.internal/aether/lab/world/control"
)

// Report is what is written to the file.
type Report struct {
	Recorded time.Time `json:"recorded"`
	Speed    float64   `json:"speed"`
	Machine  Machine   `json:"machine"`
	Join1    Join      `json:"join_1"`
	Join10   Join      `json:"join_10"`
}

// Machine is where it was measured.
type Machine struct {
	Processor string `json:"processor"`
	CPUs      int    `json:"cpus"`
	MemoryMiB int64  `json:"memory_mib"`
	Kernel    string `json:"kernel"`
}

// Join is the measurement of some workers that join at once.
type Join struct {
	Workers int `json:"workers"`
	Hosts   int `json:"hosts"`
	// FloorSeconds is the least that the lab's table and limits allow.
	FloorSeconds float64             `json:"floor_s"`
	FloorSteps   []control.FloorStep `json:"floor_steps"`
	// MeasuredSeconds is from the start of the first join to the end of the
	// last.
	MeasuredSeconds float64 `json:"measured_s"`
	OverheadSeconds float64 `json:"overhead_s"`
	// HistoryEvents and Activities are those of the join that had most.
	HistoryEvents int `json:"history_events"`
	Activities    int `json:"activities"`
	// Retries counts attempts of activities beyond the first, of all joins.
	Retries int `json:"retries"`
	// Steps tell where the time went, on the way of the join that ended last.
	// Each begins where the one before it ended; they add up to the measured
	// time.
	Steps []Step `json:"steps"`
	// CPUSeconds and ResidentMiB are the worker process's: what it used
	// meanwhile, and what it occupies afterwards.
	CPUSeconds  float64 `json:"cpu_s"`
	ResidentMiB float64 `json:"rss_mib"`
	// Load is the machine's load average over a minute, before and after.
	Load [2]float64 `json:"load"`
}

// Step is a part of the measured time, in seconds from its begin.
type Step struct {
	Name  string  `json:"name"`
	Start float64 `json:"start_s"`
	End   float64 `json:"end_s"`
}

// Write writes the report.
func (r Report) Write(path string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	if err := os.WriteFile(path, append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// Line says a join in a line, for people.
func (j Join) Line() string {
	return fmt.Sprintf("workers=%d hosts=%d measured=%.1f floor=%.1f overhead=%.1f (%.0f %%) events=%d activities=%d retries=%d cpu=%.1f rss=%.0f load=%.1f..%.1f",
		j.Workers, j.Hosts, j.MeasuredSeconds, j.FloorSeconds, j.OverheadSeconds, 100*j.OverheadSeconds/j.FloorSeconds,
		j.HistoryEvents, j.Activities, j.Retries, j.CPUSeconds, j.ResidentMiB, j.Load[0], j.Load[1])
}
