package command

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"sigs.k8s.io/yaml"
)

// table is a list for people.
type table struct {
	head []string
	rows [][]string
}

// show writes a value as JSON or YAML, or its table.
func show(out io.Writer, format string, value any, t table) error {
	switch format {
	case "json":
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(value)
	case "yaml":
		data, err := yaml.Marshal(value)
		if err != nil {
			return fmt.Errorf("encode: %w", err)
		}
		_, err = out.Write(data)
		return err
	case "table", "":
		return t.write(out)
	}
	return fmt.Errorf("--output: found %q; allowed: table, json, yaml", format)
}

func (t table) write(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	for _, row := range append([][]string{t.head}, t.rows...) {
		for i, cell := range row {
			if i > 0 {
				if _, err := io.WriteString(w, "\t"); err != nil {
					return err
				}
			}
			if _, err := io.WriteString(w, cell); err != nil {
				return err
			}
		}
		if _, err := io.WriteString(w, "\n"); err != nil {
			return err
		}
	}
	return w.Flush()
}
