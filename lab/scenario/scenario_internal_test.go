package scenario

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestNamesAreUniqueAndTold(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range All() {
		if s.Name == "" || s.Proves == "" || s.Run == nil || seen[s.Name] {
			t.Errorf("scenario %q: proves %q, run %t, seen before %t", s.Name, s.Proves, s.Run != nil, seen[s.Name])
		}
		seen[s.Name] = true
	}
}

func TestParts(t *testing.T) {
	hosts, all := Scenario{Parts: []string{"site", "kinds"}}, Scenario{}
	for name, c := range map[string]struct {
		chosen []Scenario
		want   []string
	}{
		"one":           {[]Scenario{hosts}, []string{"site", "kinds"}},
		"the same":      {[]Scenario{hosts, hosts}, []string{"site", "kinds"}},
		"more":          {[]Scenario{hosts, {Parts: []string{"kinds", "node"}}}, []string{"site", "kinds", "node"}},
		"one needs all": {[]Scenario{hosts, all}, nil},
	} {
		if diff := cmp.Diff(c.want, parts(c.chosen)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestParseCall(t *testing.T) {
	c, err := parseCall("set /nodes/pv1-1/qemu/100/config --net0 virtio,bridge=vmbr1 --agent 1")
	if err != nil {
		t.Fatal(err)
	}
	if c.verb != "PUT" || c.path != "/nodes/pv1-1/qemu/100/config" || c.values.Encode() != "agent=1&net0=virtio%2Cbridge%3Dvmbr1" {
		t.Errorf("got %+v", c)
	}
	for _, line := range []string{"", "set", "put /x --a b", "set /x --a", "set /x a b", "set /x -a b"} {
		if _, err := parseCall(line); err == nil {
			t.Errorf("%q was taken", line)
		}
	}
}

func TestRefusal(t *testing.T) {
	for answer, want := range map[string]string{
		`{"data":null}`: "400 Bad", `{"errors":{"newid":"is taken"}}`: "400 Bad map[newid:is taken]", `broken`: "400 Bad",
	} {
		if got := refusal("400 Bad", []byte(answer)); got != want {
			t.Errorf("%s: got %q, want %q", answer, got, want)
		}
	}
}

func TestReplace(t *testing.T) {
	document := func() any {
		return map[string]any{"spec": map[string]any{"list": []any{map[string]any{"name": "a"}, "b"}}}
	}
	for path, want := range map[string]any{
		"spec.list.0.name": map[string]any{"spec": map[string]any{"list": []any{map[string]any{"name": "new"}, "b"}}},
		"spec.list.1":      map[string]any{"spec": map[string]any{"list": []any{map[string]any{"name": "a"}, "new"}}},
		"spec.new.deep":    map[string]any{"spec": map[string]any{"list": []any{map[string]any{"name": "a"}, "b"}, "new": map[string]any{"deep": "new"}}},
	} {
		got, err := replace(document(), strings.Split(path, "."), "new")
		if err != nil {
			t.Errorf("%s: %v", path, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", path, diff)
		}
	}
	for _, path := range []string{"spec.list.2", "spec.list.x", "spec.list.1.name"} {
		if _, err := replace(document(), strings.Split(path, "."), "new"); err == nil {
			t.Errorf("%s was replaced", path)
		}
	}
}

func TestMinorsApart(t *testing.T) {
	for versions, want := range map[[2]string]int{{"v1.35.4", "v1.30.2"}: 5, {"v1.30.2", "v1.35.4"}: 5, {"v1.35.4", "v1.35.0"}: 0} {
		if got, err := minorsApart(versions[0], versions[1]); err != nil || got != want {
			t.Errorf("%v: got %d, %v", versions, got, err)
		}
	}
	if _, err := minorsApart("v1", "v1.35.4"); err == nil {
		t.Error("v1 has a minor version")
	}
}
