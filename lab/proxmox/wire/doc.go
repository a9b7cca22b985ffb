// Package wire speaks HTTP/1.1 the way pveproxy does: TLS without HTTP/2, the
// error text as reason phrase of the status line, "Connection: close" after
// errors, form or JSON parameters merged with the query, redirects for plain
// HTTP on the TLS port.
//
// It is a server of its own because net/http cannot send a reason phrase of
// one's choice, and clients of PVE build their errors from it. What a request
// means is the Handler's matter.
package wire
