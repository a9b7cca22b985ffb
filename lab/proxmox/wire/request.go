package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

const (
	maxPost   = 64 << 10
	maxUpload = 256 << 20
)

// Request is one request below /api2.
type Request struct {
	Verb   string
	Path   string // escaped, without /api2/<format>
	Format string // json or extjs
	Header http.Header
	Remote string

	http *http.Request
}

// Params returns the parameters of body and query; the query wins. It is to be
// called once, after authentication: PVE reads no body of a stranger.
func (r *Request) Params() (map[string]any, *Error) {
	params := map[string]any{}
	if r.http.ContentLength > 0 {
		if e := r.readBody(params); e != nil {
			return nil, e
		}
	}
	query, err := url.ParseQuery(r.http.URL.RawQuery)
	if err != nil {
		return nil, &Error{Status: http.StatusBadRequest, Message: "Bad Request", Text: true}
	}
	addForm(params, query)
	delete(params, "_dc")
	return params, nil
}

func (r *Request) readBody(params map[string]any) *Error {
	if r.Verb != http.MethodPost && r.Verb != http.MethodPut {
		return notImplemented(fmt.Sprintf("Unexpected content for method '%s'", r.Verb))
	}
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	switch kind {
	case "", "application/x-www-form-urlencoded", "application/json":
	default:
		return &Error{Status: 506, Message: fmt.Sprintf("upload 'Content-Type '%s' not implemented", r.Header.Get("Content-Type")), Text: true}
	}
	if r.http.ContentLength > maxPost {
		return notImplemented("for data too large")
	}
	body, err := io.ReadAll(r.http.Body)
	if err != nil {
		return &Error{Status: http.StatusBadRequest, Message: "Bad Request", Text: true}
	}
	if kind == "application/json" {
		return addJSON(params, body)
	}
	form, err := url.ParseQuery(string(body))
	if err != nil {
		return &Error{Status: http.StatusBadRequest, Message: "Bad Request", Text: true}
	}
	addForm(params, form)
	return nil
}

func addJSON(params map[string]any, body []byte) *Error {
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	var object map[string]any
	if err := dec.Decode(&object); err != nil {
		return &Error{Status: http.StatusInternalServerError, Message: "malformed JSON string: " + err.Error() + "\n"}
	}
	for k, v := range object {
		params[k] = v
	}
	return nil
}

func addForm(params map[string]any, form url.Values) {
	for k, values := range form {
		if len(values) == 1 {
			params[k] = values[0]
			continue
		}
		list := make([]any, 0, len(values))
		for _, v := range values {
			list = append(list, v)
		}
		params[k] = list
	}
}

func notImplemented(text string) *Error {
	return &Error{Status: http.StatusNotImplemented, Message: text, Text: true}
}

// Upload is a file that a client sent as multipart form.
type Upload struct {
	Fields   map[string]string
	FileName string
	Data     []byte
}

// IsUpload tells whether the body is a multipart form.
func (r *Request) IsUpload() bool {
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return kind == "multipart/form-data"
}

// Upload reads the body of an upload. PVE reads it in one pass and wants the
// parts in order: content, checksum-algorithm, checksum, then the file as part
// "filename".
func (r *Request) Upload() (*Upload, *Error) {
	_, attrs, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		return nil, notImplemented("unable to parse boundary")
	}
	if r.http.ContentLength > maxUpload {
		return nil, notImplemented("for data too large")
	}
	up := &Upload{Fields: map[string]string{}}
	order := []string{"content", "checksum-algorithm", "checksum"}
	reader := multipart.NewReader(r.http.Body, attrs["boundary"])
	for {
		part, err := reader.NextPart()
		if err == io.EOF {
			return nil, notImplemented("wrong field order or missing file part in upload")
		}
		if err != nil {
			return nil, &Error{Status: http.StatusBadRequest, Message: "Bad Request", Text: true}
		}
		data, err := io.ReadAll(part)
		if err != nil {
			return nil, &Error{Status: http.StatusBadRequest, Message: "Bad Request", Text: true}
		}
		if part.FormName() == "filename" && part.FileName() != "" {
			up.FileName, up.Data = part.FileName(), data
			return up, nil
		}
		i := slices.Index(order, part.FormName())
		if i < 0 {
			return nil, notImplemented(fmt.Sprintf("wrong field order or unknown part '%s' in upload", part.FormName()))
		}
		order = order[i+1:]
		up.Fields[part.FormName()] = strings.TrimRight(string(data), "\r\n")
	}
}
