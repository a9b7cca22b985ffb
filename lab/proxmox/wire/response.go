package wire

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// Error is an answer that is not a success. The first line of Message becomes
// the reason phrase.
type Error struct {
	Status  int
	Message string
	// Errors are problems by parameter.
	Errors map[string]string
	// Bare leaves the body empty, as PVE does for failed authentication.
	Bare bool
	// Text sends the message as plain text, as PVE does before it has found
	// out which format the client wants.
	Text bool
}

// Error implements error.
func (e *Error) Error() string { return fmt.Sprintf("%d %s", e.Status, e.reason()) }

func (e *Error) reason() string {
	first, _, _ := strings.Cut(e.Message, "\n")
	return strings.TrimSpace(first)
}

// Response is what the handler answers.
type Response struct {
	Data any
	// Extra are keys beside "data", such as "total".
	Extra map[string]any
	Err   *Error
	// Break closes the connection without an answer.
	Break bool
}

type message struct {
	status int
	reason string
	kind   string
	body   []byte
	header http.Header
}

const jsonType = "application/json;charset=UTF-8"

// encode turns an answer into a message in the request's format.
func encode(format string, r Response) message {
	if e := r.Err; e != nil {
		if format == "extjs" && !e.Bare && !e.Text {
			return message{status: http.StatusOK, reason: "OK", kind: jsonType, body: marshal(extjsError(e))}
		}
		return encodeError(e)
	}
	body := map[string]any{"data": r.Data}
	if format == "extjs" {
		body["success"] = 1
	}
	for k, v := range r.Extra {
		body[k] = v
	}
	return message{status: http.StatusOK, reason: "OK", kind: jsonType, body: marshal(body)}
}

func extjsError(e *Error) map[string]any {
	body := map[string]any{"data": nil, "success": 0, "status": e.Status, "message": e.Message}
	if e.Errors != nil {
		body["errors"] = e.Errors
	}
	return body
}

func encodeError(e *Error) message {
	m := message{status: e.Status, reason: e.reason(), kind: jsonType}
	if strings.ContainsAny(m.reason, "\r\n") {
		m.status, m.reason = http.StatusBadRequest, "Bad Request"
	}
	switch {
	case e.Bare:
	case e.Text:
		m.kind, m.body = "text/plain", []byte(e.Message)
	default:
		body := map[string]any{"data": nil, "message": e.Message}
		if e.Errors != nil {
			body["errors"] = e.Errors
		}
		m.body = marshal(body)
	}
	return m
}

func marshal(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return []byte(`{"data":null}`)
	}
	return bytes.TrimRight(b.Bytes(), "\n")
}

// write sends a message and returns whether the connection may be used again.
func (m message) write(w *bufio.Writer, keepAlive, acceptGzip bool) (bool, error) {
	keepAlive = keepAlive && m.status < http.StatusBadRequest
	body := m.body
	header := http.Header{}
	if acceptGzip && len(body) > 1024 {
		if packed, err := pack(body); err == nil {
			body = packed
			header.Set("Content-Encoding", "gzip")
		}
	}
	now := time.Now().UTC().Format(http.TimeFormat)
	header.Set("Cache-Control", "max-age=0")
	header.Set("Connection", map[bool]string{true: "Keep-Alive", false: "close"}[keepAlive])
	header.Set("Pragma", "no-cache")
	header.Set("Server", "pve-api-daemon/3.0")
	header.Set("Date", now)
	header.Set("Expires", now)
	header.Set("Content-Length", fmt.Sprint(len(body)))
	if len(body) > 0 {
		header.Set("Content-Type", m.kind)
	}
	for k, v := range m.header {
		header[k] = v
	}
	if _, err := fmt.Fprintf(w, "HTTP/1.1 %d %s\r\n", m.status, m.reason); err != nil {
		return false, err
	}
	if err := header.Write(w); err != nil {
		return false, err
	}
	if _, err := w.WriteString("\r\n"); err != nil {
		return false, err
	}
	if _, err := w.Write(body); err != nil {
		return false, err
	}
	return keepAlive, w.Flush()
}

func pack(body []byte) ([]byte, error) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write(body); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
