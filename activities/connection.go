package activities

import (
	"context"
	"errors"
	"net"
	"net/url"
)

// isConnection tells whether an error is one of the network between us and a
// server.
func isConnection(err error) bool {
	var network net.Error
	var request *url.Error
	return errors.As(err, &network) || errors.As(err, &request) || errors.Is(err, context.DeadlineExceeded)
}
