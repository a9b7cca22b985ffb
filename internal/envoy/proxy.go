package envoy

import (
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
)

// A refused configuration is tried again, for a reason such as an address that
// the proxy could not bind may pass.
const (
	firstRetry = 30 * time.Second
	lastRetry  = 10 * time.Minute
)

// servedTypes are the resource types of a proxy, in the order they are applied.
func servedTypes() []string { return []string{resource.ClusterType, resource.ListenerType} }

// proxy is what the server knows of one proxy. Server.mu guards it.
type proxy struct {
	wanted    Tenant
	resources Resources
	hash      string
	refused   string // why wanted could not be rendered

	version    string // of wanted, once it has one
	rolledBack bool   // the last good one is served instead

	acked    map[string]string // type URL → accepted version
	rejected *Rejection
	undone   bool // what can be done about rejected was done
	retryAt  time.Time
	retries  int

	goodHash string // of the last configuration recorded as good
	streams  map[*stream]struct{}

	reported   Status
	everOnline bool
}

// want takes a new desired state and tells whether it changes anything.
func (p *proxy) want(t Tenant) error {
	resources, err := Snapshot(t)
	if err != nil {
		p.refused = err.Error()
		return err
	}
	hash, err := resources.Hash()
	if err != nil {
		p.refused = err.Error()
		return err
	}
	p.refused = ""
	p.wanted = t
	if hash == p.hash {
		return nil
	}
	p.resources, p.hash = resources, hash
	p.version, p.rejected, p.undone, p.retries = "", nil, false, 0
	return nil
}

// accept notes an ACK.
func (p *proxy) accept(typeURL, version string) { p.acked[typeURL] = version }

// reject notes a NACK of the version being served. Of a rollback it is not
// kept: the reason that matters is why there was one.
func (p *proxy) reject(r Rejection) {
	if r.Version != p.version || p.rejected != nil {
		return
	}
	p.rejected = &r
	wait := firstRetry << p.retries
	if wait >= lastRetry {
		wait = lastRetry
	} else {
		p.retries++
	}
	p.retryAt = r.At.Add(wait)
}

// ackedVersion is the version that every type has accepted, or empty.
func (p *proxy) ackedVersion() string {
	version := ""
	for i, kind := range servedTypes() {
		if i > 0 && p.acked[kind] != version {
			return ""
		}
		version = p.acked[kind]
	}
	return version
}

func (p *proxy) applied() bool {
	return p.version != "" && p.refused == "" && p.ackedVersion() == p.version
}

func (p *proxy) status(id ID) Status {
	return Status{
		ID: id, Connected: len(p.streams) > 0,
		Wanted: p.wanted, Version: p.version, Applied: p.applied(), Acked: p.ackedVersion(),
		Rejected: p.rejected, RolledBack: p.rolledBack, Refused: p.refused,
	}
}
