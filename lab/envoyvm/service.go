package envoyvm

import (
	"context"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"aether.internal/aether/lab/container"
	"aether.internal/aether/lab/latency"
)

// Files of the image's services.
const (
	agentConfig = "etc/aether/agent.yaml"
	bootstrap   = "etc/envoy/bootstrap.yaml"
)

const (
	restartPause = time.Second // RestartSec of both units, in real time
	pathPoll     = 50 * time.Millisecond
	stopTime     = 2 * time.Second // TimeoutStopSec
)

// service is a systemd unit: a program that runs while a file exists.
type service struct {
	name      string
	condition string
	program   string
	args      []string
	delay     latency.Step // what the start takes; empty is nothing
}

// directories are what both services see of the disk.
func directories() []string {
	return []string{"etc/aether", "etc/envoy", "var/lib/aether", "var/lib/cloud", "var/log"}
}

// services runs both until life ends, and returns when their programs have
// ended. The end of power is sudden; that of life alone is a shutdown.
func (b *boot) services(power, life context.Context) {
	for _, dir := range directories() {
		if err := os.MkdirAll(b.disk.path(dir), 0o755); err != nil {
			b.say("systemd: %v", err)
			return
		}
	}
	var all sync.WaitGroup
	for _, s := range []service{
		{name: "aether-agent", condition: agentConfig, program: b.config.Agent, args: []string{"/usr/bin/aether-agent", "-config", "/" + agentConfig}},
		{name: "envoy", condition: bootstrap, program: b.config.Envoy, args: []string{"/usr/bin/envoy", "-c", "/" + bootstrap}, delay: latency.EnvoyStart},
	} {
		all.Go(func() { b.keepUp(power, life, s) })
	}
	all.Wait()
}

// keepUp starts the program when its file is there, and again when it ended.
func (b *boot) keepUp(power, life context.Context, s service) {
	for life.Err() == nil {
		if !b.disk.exists(s.condition) {
			sleep(life, pathPoll)
			continue
		}
		if s.delay != "" && b.config.Clock.Sleep(life, s.delay, 1) != nil {
			return
		}
		if err := b.runService(power, life, s); err != nil && life.Err() == nil {
			b.say("systemd: %s: %v", s.name, err)
		}
		sleep(life, b.config.Clock.Scale(restartPause))
	}
}

// runService runs the program to its end. At a shutdown it is asked to stop
// first; a power cut kills it.
func (b *boot) runService(power, life context.Context, s service) error {
	spec := container.Spec{
		ID: fmt.Sprintf("vm%d-%s", b.m.Hardware.VMID, s.name), Program: s.program, Args: s.args,
		Net: b.m.Net, Hostname: b.hostname(), Stdout: b.m.Console, Stderr: b.m.Console,
	}
	for _, dir := range directories() {
		spec.Mounts = append(spec.Mounts, container.Mount{Host: b.disk.path(dir), Container: "/" + dir})
	}
	running, err := b.config.Containers.Run(power, spec)
	if err != nil {
		return err
	}
	b.say("systemd: started %s", s.name)
	select {
	case <-running.Done():
	case <-life.Done():
		stop(running)
	}
	code, err := running.Wait()
	if err == nil && life.Err() == nil {
		b.say("systemd: %s: main process exited, status=%d", s.name, code)
	}
	return err
}

func stop(running *container.Container) {
	// Either signal fails only if the program has ended by itself.
	_ = running.Kill(syscall.SIGTERM)
	select {
	case <-running.Done():
	case <-time.After(stopTime):
		_ = running.Kill(syscall.SIGKILL)
		<-running.Done()
	}
}
