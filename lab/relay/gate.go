package relay

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// Forward opens a port of the lab on the machine's loopback.
type Forward struct {
	Name   string // for Gate.Addr and logs
	Listen string // loopback address and port; port 0 takes a free one
	Target string // address and port inside the lab
}

// Config describes a gate.
type Config struct {
	Socket   string // where Serve listens
	Forwards []Forward
	Proxy    string // loopback address of the CONNECT proxy; empty is none
	Log      *slog.Logger
}

// Gate is the outside of a relay.
type Gate struct {
	socket    string
	log       *slog.Logger
	listeners []net.Listener
	addrs     map[string]netip.AddrPort
	proxy     netip.AddrPort
	conns     live
	accepting sync.WaitGroup
}

// Open listens on the machine's loopback. The inside need not be there yet:
// connections fail until it is.
func Open(cfg Config) (*Gate, error) {
	g := &Gate{socket: cfg.Socket, log: cfg.Log, addrs: map[string]netip.AddrPort{}}
	for _, f := range cfg.Forwards {
		if err := checkTarget(f.Target); err != nil {
			return nil, errors.Join(fmt.Errorf("forward %s: %w", f.Name, err), g.Close())
		}
		addr, err := g.listen(f.Listen, func(c net.Conn) { g.forward(c, f) })
		if err != nil {
			return nil, errors.Join(fmt.Errorf("forward %s: %w", f.Name, err), g.Close())
		}
		g.addrs[f.Name] = addr
	}
	if cfg.Proxy == "" {
		return g, nil
	}
	addr, err := g.listen(cfg.Proxy, g.serveProxy)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("proxy: %w", err), g.Close())
	}
	g.proxy = addr
	return g, nil
}

// listen opens a loopback port; other addresses would open the lab, and the
// platform in it, to the machine's network.
func (g *Gate) listen(address string, handle func(net.Conn)) (netip.AddrPort, error) {
	want, err := netip.ParseAddrPort(address)
	if err != nil || !want.Addr().IsLoopback() {
		return netip.AddrPort{}, fmt.Errorf("listen: %q is not a loopback address with a port, as 127.0.0.1:8233", address)
	}
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", address)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("listen on %s: %w; another program has the port: choose one that is free", address, err)
	}
	got, err := netip.ParseAddrPort(listener.Addr().String())
	if err != nil {
		return netip.AddrPort{}, errors.Join(err, listener.Close())
	}
	g.listeners = append(g.listeners, listener)
	g.accepting.Go(func() {
		if err := g.conns.serve(listener, handle); err != nil {
			g.log.Error("relay stops listening", "address", address, "error", err)
		}
	})
	return got, nil
}

// Addr is the loopback address of a forward.
func (g *Gate) Addr(name string) (netip.AddrPort, bool) {
	addr, ok := g.addrs[name]
	return addr, ok
}

// ProxyURL is what a kubeconfig's proxy-url or HTTPS_PROXY wants; empty if the
// gate has no proxy.
func (g *Gate) ProxyURL() string {
	if !g.proxy.IsValid() {
		return ""
	}
	return "http://" + g.proxy.String()
}

// Close ends all listeners and connections and waits for them.
func (g *Gate) Close() error {
	var errs []error
	for _, l := range g.listeners {
		errs = append(errs, l.Close())
	}
	g.accepting.Wait()
	g.conns.end()
	return errors.Join(errs...)
}

// reach asks the inside for a connection.
func (g *Gate) reach(target string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), lineTime)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", g.socket)
	if err != nil {
		return nil, &RefusedError{target, "the lab does not answer at its relay socket; is it up?"}
	}
	reader := bufio.NewReaderSize(conn, maxLine)
	err = conn.SetDeadline(time.Now().Add(2 * lineTime))
	if err == nil {
		_, err = fmt.Fprintln(conn, target)
	}
	var line string
	if err == nil {
		line, err = readLine(reader)
	}
	if err == nil && line != answerOK {
		err = &RefusedError{target, line}
	}
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return buffered{conn, reader}, nil
}

// pass joins a connection with one into the lab.
func (g *Gate) pass(outside, inside net.Conn) {
	if !g.conns.add(inside) {
		_ = inside.Close()
		return
	}
	defer g.conns.remove(inside)
	join(outside, inside)
}

func (g *Gate) forward(outside net.Conn, f Forward) {
	inside, err := g.reach(f.Target)
	if err != nil {
		g.log.Info("forward fails", "forward", f.Name, "error", err)
		return
	}
	g.pass(outside, inside)
}

// serveProxy reads one request: CONNECT, or an answer that says how to ask.
func (g *Gate) serveProxy(outside net.Conn) {
	if err := outside.SetReadDeadline(time.Now().Add(lineTime)); err != nil {
		return
	}
	reader := bufio.NewReader(outside)
	request, err := http.ReadRequest(reader)
	if err != nil {
		return // not HTTP: nothing to answer to
	}
	client := buffered{outside, reader}
	switch {
	case request.Method != http.MethodConnect:
		refuse(client, http.StatusMethodNotAllowed, "this proxy serves CONNECT only; use it for https addresses")
		return
	case checkTarget(request.Host) != nil:
		refuse(client, http.StatusBadRequest, checkTarget(request.Host).Error())
		return
	}
	inside, err := g.reach(request.Host)
	if err != nil {
		refuse(client, http.StatusBadGateway, err.Error())
		return
	}
	if err := outside.SetReadDeadline(time.Time{}); err != nil {
		_ = inside.Close()
		return
	}
	if _, err := fmt.Fprint(outside, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		_ = inside.Close()
		return
	}
	g.pass(client, inside)
}

// refuse answers a proxy request; a client that is gone does not hear it.
func refuse(client net.Conn, status int, text string) {
	_, _ = fmt.Fprintf(client, "HTTP/1.1 %d %s\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s\n",
		status, http.StatusText(status), len(text)+1, text)
}
