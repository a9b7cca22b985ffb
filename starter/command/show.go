package command

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// format is how a result is written. It is a flag's value, so that a wrong one
// is refused before anything is asked.
type format string

// String implements pflag.Value.
func (f *format) String() string { return string(*f) }

// Type implements pflag.Value.
func (f *format) Type() string { return "format" }

// Set implements pflag.Value.
func (f *format) Set(text string) error {
	if !slices.Contains(formats(), text) {
		return fmt.Errorf("found %q; allowed: %s", text, strings.Join(formats(), ", "))
	}
	*f = format(text)
	return nil
}

const asTable format = "table"

func formats() []string { return []string{string(asTable), "json", "yaml"} }

// outputFlag adds -o to a command.
func outputFlag(command *cobra.Command, usage string) *format {
	output := asTable
	command.Flags().VarP(&output, "output", "o", usage)
	// It fails only for a flag that does not exist.
	_ = command.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats(), cobra.ShellCompDirectiveNoFileComp)) //nolint:errcheck // see above
	return &output
}

// table is a list for people.
type table struct {
	head []string
	rows [][]string
}

// show writes a value as JSON or YAML, or its table.
func show(out io.Writer, how format, value any, t table) error {
	switch how {
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
	default:
		return t.write(out)
	}
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

// forPeople makes an object read from an API server one that is worth showing:
// with the kind that typed clients drop, and without who wrote which field.
func forPeople(kind schema.GroupVersionKind, object kubeclient.Object) {
	object.GetObjectKind().SetGroupVersionKind(kind)
	object.SetManagedFields(nil)
}
