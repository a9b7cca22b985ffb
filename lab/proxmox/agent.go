package proxmox

import (
	"fmt"
	"slices"
	"strings"

	"aether.internal/aether/lab/faults"
	"aether.internal/aether/lab/latency"
	"aether.internal/aether/lab/machine"
)

// execResult is the end of a program that the agent ran.
type execResult struct {
	code int
	out  string
}

const firstGuestPID = 1000

// needAgent makes PVE's checks in its order. The last one takes the time of a
// ping that nobody answers.
func (c *Cluster) needAgent(r *call) (*vm, machine.AgentReport, error) {
	none := machine.AgentReport{}
	c.mu.Lock()
	v, err := c.find(r.node, r.vmid())
	var guest machine.Guest
	if err == nil {
		guest = v.guest
		switch {
		case v.conf["agent"] == "":
			err = fail("No QEMU guest agent configured")
		case guest == nil:
			err = fail("VM %d is not running", v.id)
		}
	}
	c.mu.Unlock()
	if err != nil {
		return nil, none, err
	}
	report, ok := guest.Agent()
	if !ok || c.cfg.Faults.InForce(fmt.Sprintf("pve/agent/%d", v.id), faults.NoAgent) {
		c.pause(r.ctx, c.cfg.Clock.Of(latency.AgentPing))
		return nil, none, fail("QEMU guest agent is not running")
	}
	return v, report, nil
}

type agentQuery func(machine.AgentReport) any

// agentCall answers an agent command from the guest's report.
func agentCall(query agentQuery) handler {
	return func(c *Cluster, r *call) (any, error) {
		_, report, err := c.needAgent(r)
		if err != nil {
			return nil, err
		}
		return map[string]any{"result": query(report)}, nil
	}
}

func agentPing(machine.AgentReport) any { return map[string]any{} }

func agentInfo(machine.AgentReport) any {
	return map[string]any{"version": "9.2.0", "supported_commands": []any{
		map[string]any{"name": "guest-ping", "enabled": true, "success-response": true},
	}}
}

func agentHostName(a machine.AgentReport) any { return map[string]any{"host-name": a.Hostname} }

func agentOSInfo(a machine.AgentReport) any {
	id, version, _ := strings.Cut(a.OS, " ")
	return map[string]any{
		"id": strings.ToLower(id), "name": id, "pretty-name": a.OS, "version": version, "version-id": version,
		"kernel-release": "6.12.0", "kernel-version": "#1 SMP", "machine": "x86_64",
	}
}

func agentInterfaces(a machine.AgentReport) any {
	rows := []map[string]any{}
	for _, i := range a.Interfaces {
		addresses := []map[string]any{}
		for _, p := range i.Addresses {
			kind := "ipv4"
			if p.Addr().Is6() {
				kind = "ipv6"
			}
			addresses = append(addresses, map[string]any{"ip-address": p.Addr().String(), "ip-address-type": kind, "prefix": p.Bits()})
		}
		mac := strings.ToLower(i.MAC.String())
		if mac == "" {
			mac = "00:00:00:00:00:00"
		}
		rows = append(rows, map[string]any{
			"name": i.Name, "hardware-address": mac, "ip-addresses": addresses,
			"statistics": map[string]any{"rx-bytes": 0, "tx-bytes": 0, "rx-packets": 0, "tx-packets": 0},
		})
	}
	return rows
}

// programs are what a guest can run, which clients of PVE ask of a fresh VM.
// A machine.Guest runs nothing for others.
func programs(command []string, a machine.AgentReport) (execResult, bool) {
	switch {
	case slices.Equal(command, []string{"cloud-init", "status"}):
		return execResult{out: "status: done\n"}, true
	case slices.Equal(command, []string{"hostname"}):
		return execResult{out: a.Hostname + "\n"}, true
	case slices.Equal(command, []string{"true"}):
		return execResult{}, true
	case slices.Equal(command, []string{"false"}):
		return execResult{code: 1}, true
	case command[0] == "echo":
		return execResult{out: strings.Join(command[1:], " ") + "\n"}, true
	}
	return execResult{}, false
}

func agentExec(c *Cluster, r *call) (any, error) {
	v, report, err := c.needAgent(r)
	if err != nil {
		return nil, err
	}
	command := r.values.List("command")
	if len(command) == 0 {
		return nil, fail("command or input-data (or both) required")
	}
	result, ok := programs(command, report)
	if !ok {
		return nil, fail("Agent error: Failed to execute child process “%s” (No such file or directory)", command[0])
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	v.nextExec++
	pid := firstGuestPID + v.nextExec
	v.execs[pid] = result
	return map[string]any{"pid": pid}, nil
}

// agentExecStatus gives a result once.
func agentExecStatus(c *Cluster, r *call) (any, error) {
	v, _, err := c.needAgent(r)
	if err != nil {
		return nil, err
	}
	pid := r.values.Int("pid", 0)
	c.mu.Lock()
	defer c.mu.Unlock()
	result, ok := v.execs[pid]
	if !ok {
		return nil, fail("Agent error: PID %d does not exist", pid)
	}
	delete(v.execs, pid)
	out := map[string]any{"exited": 1, "exitcode": result.code}
	if result.out != "" {
		out["out-data"] = result.out
	}
	return out, nil
}
