package proxmox

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"regexp"
	"strings"

	goproxmox "github.com/luthermonson/go-proxmox"
)

// kindOfMessage says what Proxmox's texts mean. Proxmox answers nearly all of
// its failures with status 500 and a sentence, and ends tasks with the same
// sentences, so this table is the one place that reads them. First match wins.
func kindOfMessage(message string) error {
	for _, one := range []struct {
		pattern string
		kind    error
	}{
		{`no quorum`, ErrNoQuorum},
		{`can't lock file|got lock (request )?timeout|cfs-lock .*timeout`, ErrLockTimeout},
		{`already running`, ErrVMRunning},
		{`is running - destroy failed|if VM is running`, ErrVMRunning},
		{`used in HA resources`, ErrHAManaged},
		{`no such resource 'vm:|not HA managed`, ErrNotHAManaged},
		{`protection mode enabled`, ErrProtected},
		{`VM is locked|is locked \(`, ErrLocked},
		{`config file already exists|VM \d+ already exists|CT \d+ already exists`, ErrAlreadyExists},
		{`Configuration file '[^']*/(qemu-server|lxc)/\d+\.conf' does not exist|unable to find configuration file for (VM|CT) \d+`, ErrNotFound},
		{`no such task|unable to parse worker upid`, ErrNoSuchTask},
		{`hostname lookup '[^']*' failed|no such cluster node`, ErrNoSuchNode},
		{`checksum mismatch|detected modified configuration`, ErrConflict},
		{`no space left|not enough (free )?space|insufficient (free )?space|out of (free )?space|disk quota exceeded|storage .* is full`, ErrStorageFull},
		{`cannot allocate memory|unable to allocate .*memory|cannot set up guest memory`, ErrNoMemory},
		{`volume '?[^' ]*'? does not exist|no such logical volume|no such volume|volume_size_info on|unable to parse volume|can't find .*\.iso`, ErrNoSuchVolume},
		{`received interrupt|interrupted by signal|^unexpected status|unable to get last line from task log|got no worker upid`, ErrInterrupted},
		{`parameter verification failed|not allowed for linked clones|shrinking disks is not supported|unsupported format`, ErrInvalid},
		{`can't clone VM to node|feature is not supported|invalid bootorder|no options specified|can't start a vm if it's a template`, ErrInvalid},
		{`(storage|disk|snapshot|pool|bridge) '[^']*' (does not exist|is disabled|is not available)`, ErrInvalid},
		{`got timeout|connection timed out|no route to host|connection refused`, ErrUnreachable},
	} {
		if regexp.MustCompile(`(?i)` + one.pattern).MatchString(message) {
			return one.kind
		}
	}
	return ErrUnknown
}

// classify makes an Error out of what a call returned.
func classify(op string, err error, sent bool) error {
	if err == nil {
		return nil
	}
	var already *Error
	if errors.As(err, &already) {
		return err
	}
	var api *goproxmox.APIError
	if errors.As(err, &api) {
		return classifyAnswer(op, api)
	}
	e := &Error{Op: op, Kind: ErrUnreachable, Message: transportReason(err), notSent: !sent, cause: cancellation(err)}
	if untrusted(err) {
		e.Kind = ErrUntrusted
	}
	return e
}

// classifyAnswer sorts an answer by its status, then by its text.
func classifyAnswer(op string, api *goproxmox.APIError) *Error {
	message := strings.TrimSpace(api.Message)
	e := &Error{Op: op, Status: api.StatusCode, Message: message, Fields: api.Errors}
	switch {
	case api.StatusCode == http.StatusUnauthorized:
		e.Kind = ErrUnauthorized
	case api.StatusCode == http.StatusForbidden:
		e.Kind = ErrForbidden
		e.Path, e.Privilege = missingPrivilege(message)
	case api.StatusCode == http.StatusBadRequest:
		e.Kind = kindOfFields(api.Errors)
	case api.StatusCode == http.StatusNotImplemented:
		e.Kind = ErrUnsupported
	case api.StatusCode == goproxmox.StatusNodeConnectFailed || api.StatusCode == goproxmox.StatusNodeRequestFailed:
		e.Kind = ErrUnreachable
		// A node name that is not the certificate's gives 596 each time;
		// repeating would never help.
		if regexp.MustCompile(`(?i)certificate|hostname.*(mismatch|verif)|tls.*verif`).MatchString(message) {
			e.Kind = ErrUntrusted
		}
	case api.StatusCode == http.StatusBadGateway, api.StatusCode == http.StatusServiceUnavailable, api.StatusCode == http.StatusGatewayTimeout, api.StatusCode == 599:
		e.Kind = ErrUnreachable
	default:
		e.Kind = kindOfMessage(message)
	}
	return e
}

// kindOfFields sorts a refusal of parameters: some say that a thing is taken
// or gone rather than that a parameter is wrong.
func kindOfFields(fields map[string]string) error {
	for _, text := range fields {
		switch kind := kindOfMessage(text); kind { //nolint:errorlint // one of our own kinds, never wrapped
		case ErrAlreadyExists, ErrNoSuchTask, ErrNotFound:
			return kind
		}
	}
	return ErrInvalid
}

// missingPrivilege reads path and privilege out of a 403, as "Permission
// check failed (/vms/101, VM.Clone)". Some name neither.
func missingPrivilege(message string) (path, privilege string) {
	match := regexp.MustCompile(`\((/[^,()]*), ([^()]+)\)`).FindStringSubmatch(message)
	if match == nil {
		return "", ""
	}
	return match[1], match[2]
}

// untrusted tells whether the connection failed over the certificate.
func untrusted(err error) bool {
	var verification *tls.CertificateVerificationError
	var authority x509.UnknownAuthorityError
	var host x509.HostnameError
	return errors.As(err, &verification) || errors.As(err, &authority) || errors.As(err, &host) || errors.Is(err, errFingerprint)
}

// cancellation keeps a context's error findable.
func cancellation(err error) error {
	for _, known := range []error{context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, known) {
			return known
		}
	}
	return nil
}

// transportReason is the error without the method and URL net/http adds.
func transportReason(err error) string {
	text := err.Error()
	if _, after, ok := strings.Cut(text, `": `); ok {
		return after
	}
	return text
}
