package programs

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// stdio is what a tool reads and writes.
type stdio struct {
	in       io.Reader
	out, err io.Writer
}

// tool is one small program of the toybox.
type tool func(args []string, std stdio) int

func tools() map[string]tool {
	return map[string]tool{
		"echo": echo, "cat": cat, "ls": ls, "env": env, "hostname": hostname,
		"sleep": sleep, "nc": nc, "ifaddr": ifaddr, "sh": sh,
	}
}

func sortedTools() []string {
	var names []string
	for name := range tools() {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// complain writes an error the way command line tools do.
func complain(std stdio, name string, err error) int {
	fmt.Fprintf(std.err, "%s: %v\n", name, err) //nolint:errcheck // there is nowhere else to tell
	return 1
}

func echo(args []string, std stdio) int {
	end := "\n"
	if len(args) > 0 && args[0] == "-n" {
		args, end = args[1:], ""
	}
	if _, err := fmt.Fprint(std.out, strings.Join(args, " ")+end); err != nil {
		return complain(std, "echo", err)
	}
	return 0
}

func cat(args []string, std stdio) int {
	if len(args) == 0 {
		args = []string{"-"}
	}
	for _, name := range args {
		if err := copyFile(name, std); err != nil {
			return complain(std, "cat", err)
		}
	}
	return 0
}

func copyFile(name string, std stdio) error {
	if name == "-" {
		_, err := io.Copy(std.out, std.in)
		return err
	}
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // only read
	_, err = io.Copy(std.out, file)
	return err
}

func ls(args []string, std stdio) int {
	if len(args) == 0 {
		args = []string{"."}
	}
	for _, name := range args {
		entries, err := os.ReadDir(name)
		if err != nil {
			if _, statErr := os.Lstat(name); statErr != nil {
				return complain(std, "ls", err)
			}
			fmt.Fprintln(std.out, name) //nolint:errcheck // as every tool below: a closed pipe ends it anyway
			continue
		}
		for _, entry := range entries {
			fmt.Fprintln(std.out, entry.Name()) //nolint:errcheck // see above
		}
	}
	return 0
}

func env(_ []string, std stdio) int {
	for _, entry := range os.Environ() {
		fmt.Fprintln(std.out, entry) //nolint:errcheck // see ls
	}
	return 0
}

func hostname(_ []string, std stdio) int {
	name, err := os.Hostname()
	if err != nil {
		return complain(std, "hostname", err)
	}
	fmt.Fprintln(std.out, name) //nolint:errcheck // see ls
	return 0
}

func sleep(args []string, std stdio) int {
	if len(args) != 1 {
		return complain(std, "sleep", errors.New("give a time, as 2, 0.5, 1m or infinity"))
	}
	if args[0] == "infinity" {
		select {}
	}
	text := args[0]
	if _, err := strconv.ParseFloat(text, 64); err == nil {
		text += "s"
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return complain(std, "sleep", err)
	}
	time.Sleep(d)
	return 0
}

func ifaddr(_ []string, std stdio) int {
	interfaces, err := net.Interfaces()
	if err != nil {
		return complain(std, "ifaddr", err)
	}
	for _, i := range interfaces {
		addresses, err := i.Addrs()
		if err != nil {
			return complain(std, "ifaddr", err)
		}
		for _, address := range addresses {
			fmt.Fprintf(std.out, "%s\t%s\t%s\n", i.Name, i.HardwareAddr, address) //nolint:errcheck // see ls
		}
	}
	return 0
}

// nc connects its standard streams to a TCP connection.
func nc(args []string, std stdio) int {
	flags := flag.NewFlagSet("nc", flag.ContinueOnError)
	flags.SetOutput(std.err)
	scan := flags.Bool("z", false, "connect and say no more")
	listen := flags.Bool("l", false, "listen for one connection")
	wait := flags.Duration("w", 10*time.Second, "how long connecting may take")
	port := flags.String("p", "", "port to listen on")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	conn, err := open(flags.Args(), *listen, *port, *wait)
	if err != nil {
		return complain(std, "nc", err)
	}
	defer conn.Close() //nolint:errcheck // both directions have ended
	if *scan {
		return 0
	}
	go func() {
		_, err := io.Copy(conn, std.in)
		if half, ok := conn.(*net.TCPConn); ok && err == nil {
			_ = half.CloseWrite() // the other side has closed before
		}
	}()
	if _, err := io.Copy(std.out, conn); err != nil {
		return complain(std, "nc", err)
	}
	return 0
}

func open(args []string, listen bool, port string, wait time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	if listen {
		if port == "" && len(args) > 0 {
			port = args[len(args)-1]
		}
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", ":"+port)
		if err != nil {
			return nil, err
		}
		defer listener.Close() //nolint:errcheck // one connection was all
		return listener.Accept()
	}
	if len(args) != 2 {
		return nil, errors.New("give a host and a port")
	}
	return (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(args[0], args[1]))
}

// sh runs simple commands: words, quotes and variables, joined by ; && || and
// line breaks. It has no pipes, redirections or loops and says so.
func sh(args []string, std stdio) int {
	for len(args) > 0 && strings.HasPrefix(args[0], "-") && args[0] != "-c" {
		flags := strings.TrimLeft(args[0], "-")
		args = args[1:]
		if strings.HasSuffix(flags, "c") {
			args = append([]string{"-c"}, args...)
			break
		}
	}
	if len(args) >= 2 && args[0] == "-c" {
		return script(args[1], std)
	}
	lines := bufio.NewScanner(std.in)
	code := 0
	for lines.Scan() {
		code = script(lines.Text(), std)
	}
	return code
}

func script(text string, std stdio) int {
	words, err := split(text)
	if err != nil {
		complain(std, "sh", err)
		return 2
	}
	code, skip := 0, false
	var command []string
	flush := func() {
		if len(command) > 0 && !skip {
			code = runCommand(command, std)
		}
		command = nil
	}
	for _, word := range words {
		switch word {
		case ";":
			flush()
			skip = false
		case "&&":
			flush()
			skip = code != 0
		case "||":
			flush()
			skip = code == 0
		default:
			command = append(command, word)
		}
	}
	flush()
	return code
}

func runCommand(command []string, std stdio) int {
	switch command[0] {
	case "true", ":":
		return 0
	case "false":
		return 1
	case "exit":
		code := 0
		if len(command) > 1 {
			code, _ = strconv.Atoi(command[1]) // a word that is no number is 0
		}
		os.Exit(code)
	case "exec":
		command = command[1:]
	}
	if len(command) == 0 {
		return 0
	}
	if found, ok := tools()[filepath.Base(command[0])]; ok {
		return found(command[1:], std)
	}
	cmd := exec.CommandContext(context.Background(), command[0], command[1:]...) //nolint:gosec // what a shell is for
	cmd.Stdin, cmd.Stdout, cmd.Stderr = std.in, std.out, std.err
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.ExitCode()
	default:
		complain(std, "sh", fmt.Errorf("%s: not found", command[0]))
		return 127
	}
}
