package proxmox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"aether.internal/aether/lab/faults"
	"aether.internal/aether/lab/latency"
	"aether.internal/aether/lab/proxmox/access"
	"aether.internal/aether/lab/proxmox/schema"
	"aether.internal/aether/lab/proxmox/wire"
)

// call is one request on its way to a handler.
type call struct {
	ctx    context.Context //nolint:containedctx // the life of the node that serves it
	id     access.Identity
	front  *node // that received it
	node   *node // that the path names, or front
	place  string
	spec   *schema.Call
	raw    map[string]string // before validation, for permission paths
	values schema.Values
	upload *wire.Upload
	extra  map[string]any // keys beside "data" in the answer
}

type handler func(c *Cluster, r *call) (any, error)

const (
	proxyTimeout = 30 * time.Second
	noRouteAfter = 3 * time.Second
)

// serve answers one request: faults, then PVE's order of checks.
func (c *Cluster) serve(ctx context.Context, front *node, req *wire.Request) wire.Response {
	start := time.Now()
	r := &call{ctx: ctx, front: front, node: front, place: placeOf(req.Verb, req.Path)}
	response := c.answer(r, req)
	if response.Err == nil {
		response = c.afterWork(r, response)
	}
	if c.cfg.AccessLog != nil {
		record := AccessRecord{
			Time: start, Node: front.Name, Verb: req.Verb, Path: req.Path, User: r.id.AuthID(),
			Status: http.StatusOK, Reason: "OK", Duration: time.Since(start),
		}
		if e := response.Err; e != nil {
			record.Status, record.Reason = e.Status, strings.TrimPrefix(e.Error(), fmt.Sprint(e.Status, " "))
		}
		if response.Break {
			record.Status, record.Reason = 0, ""
		}
		c.cfg.AccessLog(record)
	}
	return response
}

func placeOf(verb, path string) string {
	segments := []string{"pve", verb}
	for seg := range strings.SplitSeq(path, "/") {
		if plain, err := url.PathUnescape(seg); err == nil {
			seg = strings.ReplaceAll(plain, "/", "%2F")
		}
		if seg != "" {
			segments = append(segments, seg)
		}
	}
	return strings.Join(segments, "/")
}

func (c *Cluster) answer(r *call, req *wire.Request) wire.Response {
	if f := c.cfg.Faults.Take(r.place, faults.HTTPStatus); f != nil {
		return wire.Response{Err: &wire.Error{Status: f.Status, Message: f.Message + "\n", Bare: f.Status >= 595}}
	}
	data, err := c.check(r, req)
	if err != nil {
		e := asWireError(err)
		if e.Status == http.StatusUnauthorized {
			c.pause(r.ctx, c.cfg.Clock.Of(latency.AuthFailureDelay))
		}
		return wire.Response{Err: e}
	}
	return wire.Response{Data: data, Extra: r.extra}
}

func (c *Cluster) check(r *call, req *wire.Request) (any, error) {
	spec, uri := c.schema.Find(req.Verb, req.Path)
	if spec == nil || spec.User != "world" {
		if err := c.authenticate(r, req); err != nil {
			return nil, err
		}
	}
	var params map[string]any
	if spec == nil || !req.IsUpload() {
		var e *wire.Error
		if params, e = req.Params(); e != nil {
			return nil, e
		}
	} else {
		params = map[string]any{}
	}
	if spec == nil || c.routes[spec.Verb+" "+spec.Path] == nil {
		path, err := url.PathUnescape(req.Path)
		if err != nil {
			path = req.Path
		}
		return nil, &wire.Error{Status: http.StatusNotImplemented, Message: fmt.Sprintf("Method '%s %s' not implemented\n", req.Verb, path)}
	}
	r.spec = spec
	if err := r.mergeURI(params, uri); err != nil {
		return nil, err
	}
	if spec.TicketOnly && strings.HasPrefix(req.Header.Get("Authorization"), "PVEAPIToken=") {
		return nil, &wire.Error{
			Status:  http.StatusForbidden,
			Message: fmt.Sprintf("Permission check failed (URI '%s' not available with API token, need proper ticket.\n", spec.Path),
		}
	}
	if err := c.authorize(r); err != nil {
		return nil, err
	}
	return c.toNode(r, req, params)
}

// mergeURI adds the path's names to the parameters.
func (r *call) mergeURI(params map[string]any, uri map[string]string) error {
	for name, value := range uri {
		if given, ok := params[name]; ok && given != nil && fmt.Sprint(given) != value {
			return paramError(name, "duplicate parameter (already defined in URI) with conflicting values!")
		}
		params[name] = value
	}
	r.raw = map[string]string{}
	for name, value := range params {
		switch v := value.(type) {
		case string:
			r.raw[name] = v
		case json.Number:
			r.raw[name] = v.String()
		}
	}
	return nil
}

func (c *Cluster) authenticate(r *call, req *wire.Request) error {
	now := time.Now()
	header := req.Header.Get("Authorization")
	ticket := ""
	for part := range strings.SplitSeq(req.Header.Get("Cookie"), ";") {
		if value, ok := strings.CutPrefix(strings.TrimSpace(part), "PVEAuthCookie="); ok {
			ticket, _ = url.PathUnescape(value)
		}
	}
	if value, ok := strings.CutPrefix(header, "PVEAuthCookie="); ok && ticket == "" {
		ticket = value
	}
	failed := &wire.Error{Status: http.StatusUnauthorized, Message: "Authentication failed!", Bare: true}
	if ticket != "" {
		id, ok := c.access.ByTicket(ticket, now)
		if !ok {
			return failed
		}
		if req.Verb != http.MethodGet && !c.access.CSRFMatches(id.User, req.Header.Get("CSRFPreventionToken"), now) {
			return &wire.Error{Status: http.StatusUnauthorized, Message: "Permission denied - invalid csrf token", Bare: true}
		}
		r.id = id
		return nil
	}
	token, ok := strings.CutPrefix(header, "PVEAPIToken=")
	if !ok {
		return &wire.Error{Status: http.StatusUnauthorized, Message: "No ticket", Bare: true}
	}
	id, ok := c.access.ByToken(token, now)
	if !ok {
		return failed
	}
	r.id = id
	return nil
}

func (c *Cluster) authorize(r *call) error {
	if r.spec.User == "world" || r.spec.User == "all" {
		return nil
	}
	return c.access.Evaluate(r.id, r.spec.Check, r.raw)
}

// toNode does the work where the path says: here, or on another host, which
// may be off or slow.
func (c *Cluster) toNode(r *call, req *wire.Request, params map[string]any) (any, error) {
	name, has := r.raw["node"]
	if !has || name == "localhost" || name == r.front.Name {
		return c.work(r, req, params)
	}
	target := c.nodes[name]
	if target == nil {
		return nil, fail("hostname lookup '%s' failed - failed to get address info for: %s: Name or service not known", name, name)
	}
	if !target.powered() {
		c.pause(r.ctx, c.cfg.Clock.Scale(noRouteAfter))
		return nil, &wire.Error{Status: 595, Message: "No route to host", Bare: true}
	}
	if !target.reachable() {
		return nil, &wire.Error{Status: 595, Message: "Connection refused", Bare: true}
	}
	r.node = target
	return c.proxy(r, req, params)
}

type outcome struct {
	data any
	err  error
}

func (c *Cluster) proxy(r *call, req *wire.Request, params map[string]any) (any, error) {
	remote := *r
	done := make(chan outcome, 1)
	c.wg.Go(func() {
		data, err := c.work(&remote, req, params)
		done <- outcome{data, err}
	})
	timer := time.NewTimer(c.cfg.Clock.Scale(proxyTimeout))
	defer timer.Stop()
	select {
	case o := <-done:
		r.extra = remote.extra
		if !r.node.powered() {
			return nil, &wire.Error{Status: 596, Message: "Connection reset by peer", Bare: true}
		}
		return o.data, o.err
	case <-timer.C:
		return nil, &wire.Error{Status: 596, Message: "Connection timed out", Bare: true}
	}
}

func (c *Cluster) work(r *call, req *wire.Request, params map[string]any) (any, error) {
	if f := c.cfg.Faults.Take(r.place, faults.Delay); f != nil {
		c.pause(r.ctx, f.Delay)
	}
	if req.IsUpload() {
		upload, e := req.Upload()
		if e != nil {
			return nil, e
		}
		r.upload = upload
		for name, value := range upload.Fields {
			params[name] = value
		}
		params["filename"] = upload.FileName
	}
	values, problems := r.spec.Validate(params)
	if problems != nil {
		return nil, &wire.Error{Status: http.StatusBadRequest, Message: "Parameter verification failed.\n", Errors: problems}
	}
	r.values = values
	return c.routes[r.spec.Verb+" "+r.spec.Path](c, r)
}

// afterWork holds or loses the answer to a call that took effect.
func (c *Cluster) afterWork(r *call, response wire.Response) wire.Response {
	f := c.cfg.Faults.Take(r.place, faults.LostAnswer, faults.Hold)
	if f == nil {
		return response
	}
	if f.Kind == faults.LostAnswer {
		return wire.Response{Break: true}
	}
	select {
	case <-f.Released():
	case <-r.ctx.Done():
	}
	return response
}

func (c *Cluster) pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// fail is what a handler's die becomes: 500 with the text.
func fail(format string, args ...any) *wire.Error {
	return &wire.Error{Status: http.StatusInternalServerError, Message: fmt.Sprintf(format, args...) + "\n"}
}

func paramError(name, text string) *wire.Error {
	return &wire.Error{
		Status: http.StatusBadRequest, Message: "Parameter verification failed.\n", Errors: map[string]string{name: text},
	}
}

func asWireError(err error) *wire.Error {
	var e *wire.Error
	if errors.As(err, &e) {
		return e
	}
	var denied *access.Denied
	if errors.As(err, &denied) {
		return &wire.Error{Status: http.StatusForbidden, Message: denied.Error() + "\n"}
	}
	return fail("%s", strings.TrimRight(err.Error(), "\n"))
}
