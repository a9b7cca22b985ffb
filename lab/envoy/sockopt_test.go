package envoy

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

func socketOption(t *testing.T, c *net.TCPConn, level, name int) int {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var value int
	var failed error
	if err := raw.Control(func(fd uintptr) { value, failed = unix.GetsockoptInt(int(fd), level, name) }); err != nil || failed != nil {
		t.Fatal(err, failed)
	}
	return value
}
