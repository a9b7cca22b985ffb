package upstream

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Name is one of the programs.
type Name string

// The programs.
const (
	// Kubernetes is etcd, kube-apiserver, kube-controller-manager,
	// kube-scheduler and kubectl in one; argv[0] or the first argument says
	// which.
	Kubernetes Name = "kubernetes"
	// CAPI is the manager of Cluster API core.
	CAPI Name = "capi"
	// KonnectivityServer is the proxy server beside a tenant's API server.
	KonnectivityServer Name = "konnectivity-server"
	// KonnectivityAgent is the agent in a tenant's cluster.
	KonnectivityAgent Name = "konnectivity-agent"
	// Temporal is the Temporal server with its web UI on a SQLite file.
	Temporal Name = "temporal"
)

// Names lists all programs.
func Names() []Name {
	return []Name{Kubernetes, CAPI, KonnectivityServer, KonnectivityAgent, Temporal}
}

// Paths says where each program lies.
type Paths map[Name]string

// program is how one is built.
type program struct {
	name Name
	// module is the folder of its module below lab/upstream.
	module string
	// pkg is what is built: "." or a package of a dependency.
	pkg string
	// upstream is the dependency whose version names the program.
	upstream string
	// stamp makes linker flags from that version; nil for none.
	stamp func(version string) []string
	// expect tells a person how long the first build takes.
	expect string
}

func programs() []program {
	const network = "sigs.k8s.io/apiserver-network-proxy"
	return []program{
		{name: Kubernetes, module: "kubernetes", pkg: ".", upstream: "k8s.io/kubernetes", stamp: kubernetesStamp, expect: "about 13 minutes"},
		{name: CAPI, module: "capi", pkg: "sigs.k8s.io/cluster-api", upstream: "sigs.k8s.io/cluster-api", expect: "about 5 minutes"},
		{name: KonnectivityServer, module: "konnectivity", pkg: network + "/cmd/server", upstream: network, expect: "about 2 minutes"},
		{name: KonnectivityAgent, module: "konnectivity", pkg: network + "/cmd/agent", upstream: network, expect: "about a minute"},
		{name: Temporal, module: "temporal", pkg: ".", upstream: "go.temporal.io/server", expect: "about 4 minutes"},
	}
}

func findProgram(name Name) (program, error) {
	for _, p := range programs() {
		if p.name == name {
			return p, nil
		}
	}
	return program{}, fmt.Errorf("upstream program %q is unknown; allowed: %v", name, Names())
}

// kubernetesStamp writes the version into the program. Without it the API
// server calls itself v0.0.0-master, which Cluster API and Kamaji refuse.
func kubernetesStamp(version string) []string {
	const where = "k8s.io/component-base/version."
	major, rest, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	minor, _, _ := strings.Cut(rest, ".")
	set := func(name, value string) string { return "-X=" + where + name + "=" + value }
	return []string{
		set("gitVersion", version),
		set("gitMajor", major),
		set("gitMinor", minor),
		// The module proxy serves a tag, not a commit: name what was built.
		set("gitCommit", "module-"+version),
		set("gitTreeState", "clean"),
	}
}

// flags are the arguments of go build but for the output and the package.
func (p program) flags(version string) []string {
	ldflags := []string{"-s", "-w"}
	if p.stamp != nil {
		ldflags = append(ldflags, p.stamp(version)...)
	}
	return []string{"-trimpath", "-buildvcs=false", "-ldflags=" + strings.Join(ldflags, " ")}
}

// requiredVersion reads from a go.mod which version of a module it asks for.
func requiredVersion(gomod, module string) (string, error) {
	data, err := os.ReadFile(gomod)
	if err != nil {
		return "", err
	}
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		fields := strings.Fields(strings.TrimPrefix(strings.TrimSpace(lines.Text()), "require "))
		if len(fields) >= 2 && fields[0] == module && strings.HasPrefix(fields[1], "v") {
			return fields[1], nil
		}
	}
	return "", fmt.Errorf("%s does not require %s", gomod, module)
}

// sources lists what of a module's folder decides about the program.
func sources(dir string) ([]string, error) {
	files := []string{filepath.Join(dir, "go.mod"), filepath.Join(dir, "go.sum")}
	code, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	for _, f := range code {
		if !strings.HasSuffix(f, "_test.go") {
			files = append(files, f)
		}
	}
	slices.Sort(files)
	return files, nil
}
