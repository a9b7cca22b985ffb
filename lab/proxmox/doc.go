// Package proxmox simulates a Proxmox VE 9.2 cluster on its real wire
// protocol: the HTTP API of each host on port 8006 with PVE's status lines and
// texts, its tasks, locks, permissions, storages and media, and an SSH door
// for neighbour flushes. VMs are powered on through a machine.Hypervisor;
// everything else about them lives here. It knows nothing of Aether.
//
// New starts a Cluster from a Config (HomeLab gives that of the origin), Close
// ends it. RunStandalone runs one with a blank hypervisor for any client.
// Calls that PVE has and the simulator has not answer 501.
//
// # Faults
//
// The place of a call is pve/<METHOD>/<path without /api2/json>, with the
// values of the request in it and a slash inside a segment written as %2F:
// pve/POST/nodes/pv1-1/qemu/901/clone. Patterns are those of path.Match, so a
// star stands for one segment: pve/POST/nodes/*/qemu/*/clone. A call knows
//
//   - http-status: answers Status and Message, before anything is looked at;
//   - delay: waits before the work. A call that one host forwards to another
//     answers "596 Connection timed out" after 30 s, and the work goes on;
//   - lost-answer: does the work, then breaks the connection;
//   - hold: does the work and keeps the answer until the fault is cleared;
//   - failed-task: the task it starts ends with Message. "WARNINGS: 1" leaves
//     the work done; "unexpected status" kills the worker, which leaves locks
//     in the configuration; anything else is cleaned up as PVE does.
//
// lost-answer and hold count only calls that succeeded. Other places:
//
//   - pve/quorum, no-quorum: writes answer "cluster not ready - no quorum?";
//   - pve/host/<node>, host-off: the host loses power, its VMs with it; other
//     hosts answer 595 for it. Cleared, it boots and starts VMs with onboot;
//   - pve/api/<node>, away: pveproxy is down, the VMs run on;
//   - pve/agent/<vmid>, no-agent: the guest agent never answers.
//
// # Times
//
// All times come from the clock: those of lab/latency, and PVE's own time-outs
// (locks 1, 5 and 10 s, tickets 2 h, proxying 30 s, shutdown 60 s) scaled by
// it. A linked clone holds the lock of its storage for half of its time, a
// full clone for the allocation only.
//
// # What it does not show
//
// Hot-plugging is limited to what machine.Guest offers: link_down and media
// change at once, everything else on a running VM is pending until the next
// start. Containers, backups, migration, move_disk, rollback, firewall, SDN
// changes and the console are 501. Memory and disks can be over-committed as on PVE.
package proxmox
