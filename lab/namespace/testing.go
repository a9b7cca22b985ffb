package namespace

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// tests is a *testing.M; named here so that programs do not link the testing
// package.
type tests interface{ Run() int }

// RunTests runs a package's tests inside namespaces of their own:
//
//	func TestMain(m *testing.M) { os.Exit(namespace.RunTests(m)) }
func RunTests(m tests) int {
	if code, ok := Init(); ok {
		return code
	}
	if Inside() {
		return m.Run()
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	code, err := Enter(ctx, Options{Args: os.Args[1:], Stdout: os.Stdout, Stderr: os.Stderr})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}
