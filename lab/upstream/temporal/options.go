package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	enumspb "go.temporal.io/api/enums/v1"
)

// errHelp is returned when only the usage was asked for.
var errHelp = errors.New("help was asked for")

// options is what the command line says.
type options struct {
	ip, db, namespace, codecEndpoint, logLevel string
	port, uiPort                               int
	attributes                                 attributes
}

// frontend is where the server is reached.
func (o options) frontend() string { return net.JoinHostPort(o.ip, strconv.Itoa(o.port)) }

// attributes are custom search attributes by name; a flag.Value.
type attributes map[string]enumspb.IndexedValueType

func (a attributes) String() string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(a)) {
		parts = append(parts, name+"="+a[name].String())
	}
	return strings.Join(parts, ",")
}

func (a attributes) Set(s string) error {
	name, kind, found := strings.Cut(s, "=")
	if !found || name == "" {
		return fmt.Errorf("%q is not name=Type; for example AetherTenant=Keyword", s)
	}
	t, err := enumspb.IndexedValueTypeFromString(kind)
	if err != nil || t == enumspb.INDEXED_VALUE_TYPE_UNSPECIFIED {
		return fmt.Errorf("search attribute %s: type %q is unknown; allowed: Text, Keyword, Int, Double, Bool, Datetime, KeywordList", name, kind)
	}
	a[name] = t
	return nil
}

func parseOptions(args []string, out io.Writer) (options, error) {
	o := options{attributes: attributes{}}
	f := flag.NewFlagSet("temporal", flag.ContinueOnError)
	f.SetOutput(out)
	f.StringVar(&o.ip, "ip", "127.0.0.1", "address of the frontend and the web UI")
	f.IntVar(&o.port, "port", 7233, "gRPC port of the frontend")
	f.IntVar(&o.uiPort, "ui-port", 8233, "HTTP port of the web UI; 0 leaves the UI out")
	f.StringVar(&o.db, "db", "", "SQLite file; made when missing (required)")
	f.StringVar(&o.namespace, "namespace", "default", "namespace to register")
	f.StringVar(&o.codecEndpoint, "codec-endpoint", "", "URL of the codec server the web UI asks to decode payloads")
	f.Var(o.attributes, "search-attribute", "custom search attribute as name=Type; may be repeated")
	f.StringVar(&o.logLevel, "log-level", "warn", "debug, info, warn or error")
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return o, errHelp
		}
		return o, err
	}
	switch {
	case f.NArg() > 0:
		return o, fmt.Errorf("argument %q is not expected; there are only flags", f.Arg(0))
	case o.db == "":
		return o, errors.New("--db is empty: name the SQLite file that keeps the server's state")
	case net.ParseIP(o.ip) == nil:
		return o, fmt.Errorf("--ip %q is not an address; for example 127.0.0.1", o.ip)
	case o.namespace == "":
		return o, errors.New("--namespace is empty")
	case !slices.Contains([]string{"debug", "info", "warn", "error"}, o.logLevel):
		return o, fmt.Errorf("--log-level %q is unknown; allowed: debug, info, warn, error", o.logLevel)
	}
	return o, nil
}
