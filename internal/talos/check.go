package talos

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Want is what a configuration must have been made from.
type Want = Input

// Check reads a configuration, whoever wrote it, and finds what is not as
// wanted. No finding means that the worker joins this tenant as this machine.
//
// It goes three rounds: Talos's own validation; our rules, which say for each
// field what breaks and how to get the right value; and a comparison of the
// whole with what Render would write, so that no field is left unlooked at.
func Check(configuration []byte, want Want) []Finding {
	found, err := parseTree(configuration)
	if err != nil {
		return []Finding{{Field: "configuration", Found: scrub(err.Error()), Needed: "YAML documents of Talos " + want.TalosVersion, Fix: renderAgain}}
	}
	findings := checkMachinery(configuration)
	if err := want.Validate(); err != nil {
		// Without a sound wish there is nothing to compare with.
		return append(findings, Finding{Field: "wanted worker", Found: scrub(err.Error()), Needed: "data that can make a worker", Fix: "correct the named fields first"})
	}
	for _, r := range want.rules() {
		findings = append(findings, r.check(found)...)
	}
	findings = append(findings, checkLabels(found)...)
	return append(findings, want.checkRest(found, findings)...)
}

const renderAgain = "render the configuration again from the tenant's live data"

// checkMachinery asks Talos itself, in the mode of the nocloud platform, with
// warnings as errors.
func checkMachinery(configuration []byte) []Finding {
	provider, err := load(configuration)
	if err != nil {
		return []Finding{{Field: "configuration", Found: scrub(err.Error()), Needed: "what this Talos version can read", Fix: renderAgain}}
	}
	warnings, err := provider.Validate(cloudMode{})
	var findings []Finding
	for _, w := range warnings {
		findings = append(findings, Finding{Field: "configuration", Found: scrub(w), Needed: "no warning of Talos's validation", Fix: renderAgain})
	}
	if err != nil {
		findings = append(findings, Finding{Field: "configuration", Found: scrub(err.Error()), Needed: "what Talos's validation accepts", Fix: renderAgain})
	}
	return findings
}

// rule is one field with the value it must have.
type rule struct {
	path   string
	needed any // nil: nothing may be there
	fix    string
	// problem judges the value instead of comparing it; it returns what was
	// found and what is needed, and "" for nothing wrong.
	problem func(value any) (found, needed string)
}

func (r rule) check(found tree) []Finding {
	value := found.at(r.path)
	if r.problem != nil {
		if was, needed := r.problem(value); was != "" {
			return []Finding{{Field: r.path, Found: was, Needed: needed, Fix: r.fix}}
		}
		return nil
	}
	if reflect.DeepEqual(value, plain(r.needed)) {
		return nil
	}
	return []Finding{{Field: r.path, Found: show(r.path, value), Needed: show(r.path, plain(r.needed)), Fix: r.fix}}
}

// checkLabels finds labels that the node's credential may not set, whatever was
// wanted.
func checkLabels(found tree) []Finding {
	labels, _ := found.at("machine.nodeLabels").(map[string]any)
	var findings []Finding
	for _, key := range unionKeys(labels, nil) {
		if coreSetsLabel(key) || !nodeMaySetLabel(key) {
			findings = append(findings, Finding{
				Field: "machine.nodeLabels", Found: fmt.Sprintf("%q", key),
				Needed: "labels that NodeRestriction lets a node set",
				Fix:    "put it on the Machine: Cluster API core copies node-role, node-restriction and node.cluster.x-k8s.io labels",
			})
		}
	}
	return findings
}

// checkRest compares everything with what Render writes, and reports what no
// rule has reported.
func (in Input) checkRest(found tree, already []Finding) []Finding {
	rendered, err := Render(in)
	if err != nil {
		return []Finding{{Field: "wanted worker", Found: scrub(err.Error()), Needed: "data that can make a worker", Fix: "correct the named fields first"}}
	}
	needed, err := parseTree(rendered)
	if err != nil {
		return []Finding{{Field: "configuration", Found: scrub(err.Error()), Needed: "a rendering that can be read back", Fix: "this is a fault of Aether: report it"}}
	}
	var findings []Finding
	for _, path := range differences(found, needed) {
		if slices.ContainsFunc(already, func(f Finding) bool { return covers(f.Field, path) }) {
			continue
		}
		findings = append(findings, Finding{
			Field: strings.TrimPrefix(path, "."), Found: show(path, found.at(path)), Needed: show(path, needed.at(path)), Fix: renderAgain,
		})
	}
	return findings
}

// covers tells whether a path is a field or inside of it, or holds it.
func covers(field, path string) bool {
	inside := func(outer, inner string) bool {
		return inner == outer || strings.HasPrefix(inner, outer+".") || strings.HasPrefix(inner, outer+"[")
	}
	return inside(field, path) || inside(path, field)
}
