// Command summary adds up the test runs whose `go test -json` files it is
// given: counts, what failed, and the ten slowest tests. It fails when a test
// failed or when none ran.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// event is a line of `go test -json`.
type event struct {
	Action, Package, Test string
	Elapsed               float64
}

// result is one test that ended.
type result struct {
	name    string
	action  string
	seconds float64
}

func main() {
	var all []result
	for _, name := range os.Args[1:] {
		results, err := read(name)
		if err != nil {
			fmt.Fprintln(os.Stderr, "summary:", err)
			os.Exit(1)
		}
		all = append(all, results...)
	}
	if !report(os.Stdout, all) {
		os.Exit(1)
	}
}

func read(name string) ([]result, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var results []result
	lines := bufio.NewScanner(file)
	const longest = 16 << 20
	lines.Buffer(nil, longest)
	for lines.Scan() {
		var e event
		// Build errors are text among the events.
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			continue
		}
		ended := e.Action == "pass" || e.Action == "fail" || e.Action == "skip"
		if !ended || (e.Test == "" && e.Action != "fail") {
			continue
		}
		results = append(results, result{strings.TrimSpace(e.Package + " " + e.Test), e.Action, e.Elapsed})
	}
	return results, lines.Err()
}

// report writes the summary and tells whether all is well.
func report(out io.Writer, all []result) bool {
	counts := map[string]int{}
	for _, r := range all {
		counts[r.action]++
	}
	slices.SortStableFunc(all, func(a, b result) int {
		switch {
		case a.seconds > b.seconds:
			return -1
		case a.seconds < b.seconds:
			return 1
		}
		return 0
	})
	const most = 10
	fmt.Fprintln(out, "\nthe ten slowest tests:")
	for _, r := range all[:min(most, len(all))] {
		fmt.Fprintf(out, "%8.1fs  %s\n", r.seconds, r.name)
	}
	for _, r := range all {
		if r.action == "fail" {
			fmt.Fprintln(out, "failed:", r.name)
		}
	}
	fmt.Fprintf(out, "%d passed, %d failed, %d skipped\n", counts["pass"], counts["fail"], counts["skip"])
	return counts["fail"] == 0 && counts["pass"] > 0
}
