package talos

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// tree is a configuration as it is written: the documents by kind and name, the
// main one under the empty key. Reading it does not depend on what the
// machinery's types know or drop.
type tree map[string]any

func parseTree(configuration []byte) (tree, error) {
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(configuration)))
	out := tree{}
	for {
		raw, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("split documents: %w", err)
		}
		var document map[string]any
		if err := yaml.Unmarshal(raw, &document); err != nil {
			return nil, fmt.Errorf("document %d: %w", len(out)+1, err)
		}
		if len(document) == 0 {
			continue
		}
		key := documentKey(document)
		if _, twice := out[key]; twice {
			return nil, fmt.Errorf("document %q occurs twice", key)
		}
		out[key] = document
	}
}

func documentKey(document map[string]any) string {
	kind, _ := document["kind"].(string)
	if name, named := document["name"].(string); named && kind != "" {
		return kind + "[" + name + "]"
	}
	return kind
}

// at returns what is at a path such as machine.kubelet.image or
// LinkConfig[net0].mtu; nil when nothing is there. Only the first segment can
// name a document.
func (t tree) at(path string) any {
	var document any
	if m := documentPath().FindStringSubmatch(path); m != nil {
		document, path = t[m[1]], m[2]
	} else {
		document = t[""]
	}
	for _, segment := range segments(path) {
		switch node := document.(type) {
		case map[string]any:
			document = node[segment]
		case []any:
			i, err := strconv.Atoi(segment)
			if err != nil || i < 0 || i >= len(node) {
				return nil
			}
			document = node[i]
		default:
			return nil
		}
	}
	return document
}

// documentPath splits Kind[name].field; kinds begin with a capital.
func documentPath() *regexp.Regexp {
	return regexp.MustCompile(`^([A-Z][A-Za-z0-9]*(?:\[[^\]]*\])?)(?:\.|$)(.*)$`)
}

func segments(path string) []string {
	path = strings.NewReplacer("[", ".", "]", "").Replace(path)
	return strings.FieldsFunc(path, func(r rune) bool { return r == '.' })
}

// differences lists the paths at which two trees differ, as deep as possible.
func differences(found, needed tree) []string {
	var paths []string
	for _, key := range unionKeys(found, needed) {
		paths = append(paths, diffNode(key, found[key], needed[key])...)
	}
	return paths
}

func diffNode(path string, found, needed any) []string {
	if reflect.DeepEqual(found, needed) {
		return nil
	}
	foundMap, isMap := found.(map[string]any)
	neededMap, bothMaps := needed.(map[string]any)
	if isMap && bothMaps {
		var paths []string
		for _, key := range unionKeys(foundMap, neededMap) {
			paths = append(paths, diffNode(join(path, key), foundMap[key], neededMap[key])...)
		}
		return paths
	}
	foundList, isList := found.([]any)
	neededList, bothLists := needed.([]any)
	if isList && bothLists && len(foundList) == len(neededList) {
		var paths []string
		for i := range foundList {
			paths = append(paths, diffNode(fmt.Sprintf("%s[%d]", path, i), foundList[i], neededList[i])...)
		}
		return paths
	}
	return []string{path}
}

func unionKeys[V any](a, b map[string]V) []string {
	keys := slices.AppendSeq(slices.Collect(maps.Keys(a)), maps.Keys(b))
	slices.Sort(keys)
	return slices.Compact(keys)
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// show prints a value for people, never one of a secret field.
func show(path string, value any) string {
	if value == nil {
		return "nothing"
	}
	if secretPath(path) {
		return "a hidden value"
	}
	if text, isText := value.(string); isText {
		return strconv.Quote(scrub(text))
	}
	out, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprintf("a value of type %T", value)
	}
	return scrub(string(out))
}

// plain makes a value comparable to one read from YAML.
func plain(value any) any {
	raw, err := json.Marshal(value)
	if err != nil {
		return value
	}
	var out any
	if err := json.Unmarshal(raw, &out); err != nil {
		return value
	}
	return out
}
