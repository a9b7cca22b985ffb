package envoy

import (
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"strconv"
	"sync/atomic"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	streamv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stream/v3"
)

// session is what an access log line is made of.
type session struct {
	began, ended            time.Time
	remote, local, upstream net.Addr
	received, sent          atomic.Int64
	idle                    atomic.Bool
	flags                   string
}

// accessLog writes a line per connection.
type accessLog struct {
	format string
	to     io.Writer
}

var command = regexp.MustCompile(`%([A-Z_]+)(?:\([^)]*\))?%`)

const defaultFormat = "[%START_TIME%] \"%DOWNSTREAM_REMOTE_ADDRESS%\" %RESPONSE_FLAGS% %BYTES_RECEIVED% %BYTES_SENT% %DURATION% \"%UPSTREAM_HOST%\"\n"

func newAccessLog(entry *accesslogv3.AccessLog, stdout io.Writer) (*accessLog, error) {
	var format *core.SubstitutionFormatString
	to := stdout
	config := entry.GetTypedConfig()
	switch {
	case config.MessageIs(&streamv3.StdoutAccessLog{}):
		var log streamv3.StdoutAccessLog
		if err := config.UnmarshalTo(&log); err != nil {
			return nil, fmt.Errorf("access log %s: %w", entry.GetName(), err)
		}
		format = log.GetLogFormat()
	case config.MessageIs(&filev3.FileAccessLog{}):
		var log filev3.FileAccessLog
		if err := config.UnmarshalTo(&log); err != nil {
			return nil, fmt.Errorf("access log %s: %w", entry.GetName(), err)
		}
		format = log.GetLogFormat()
		file, err := os.OpenFile(log.GetPath(), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, fmt.Errorf("unable to open file '%s': %w", log.GetPath(), err)
		}
		to = file
	default:
		return nil, unknownExtension(entry.GetName(), config.GetTypeUrl())
	}
	text := format.GetTextFormatSource().GetInlineString()
	if text == "" {
		text = defaultFormat
	}
	values := (&session{}).values()
	for _, match := range command.FindAllStringSubmatch(text, -1) {
		if _, known := values[match[1]]; !known {
			return nil, fmt.Errorf("Not supported field in StreamInfo: %s", match[1]) //nolint:staticcheck // the real one's text
		}
	}
	return &accessLog{format: text, to: to}, nil
}

func (a *accessLog) write(s *session) {
	values := s.values()
	line := command.ReplaceAllStringFunc(a.format, func(text string) string {
		return values[command.FindStringSubmatch(text)[1]]
	})
	_, _ = io.WriteString(a.to, line)
}

func (s *session) values() map[string]string {
	flags := s.flags
	if flags == "" {
		flags = "-"
	}
	return map[string]string{
		"START_TIME":                s.began.UTC().Format("2006-01-02T15:04:05.000Z"),
		"DOWNSTREAM_REMOTE_ADDRESS": addressText(s.remote),
		"DOWNSTREAM_LOCAL_ADDRESS":  addressText(s.local),
		"UPSTREAM_HOST":             addressText(s.upstream),
		"DURATION":                  strconv.FormatInt(s.ended.Sub(s.began).Milliseconds(), 10),
		"BYTES_RECEIVED":            strconv.FormatInt(s.received.Load(), 10),
		"BYTES_SENT":                strconv.FormatInt(s.sent.Load(), 10),
		"RESPONSE_FLAGS":            flags,
	}
}

func addressText(a net.Addr) string {
	if a == nil {
		return "-"
	}
	return a.String()
}
