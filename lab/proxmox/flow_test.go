package proxmox_test

import "testing"

func TestThinLine(t *testing.T) {
	l := start(t)
	l.ok("POST", "/nodes/pv1-1/qemu/101/clone", map[string]string{"newid": "1000", "name": "w1", "description": "mark"})
	l.ok("POST", "/nodes/pv1-1/qemu/1000/config", map[string]string{"cores": "4", "memory": "4096", "tags": "b;a", "ipconfig0": "ip=192.168.0.50/24,gw=192.168.0.1"})
	l.ok("PUT", "/nodes/pv1-1/qemu/1000/resize", map[string]string{"disk": "scsi0", "size": "20G"})
	l.ok("POST", "/nodes/pv1-1/qemu/1000/status/start", nil)
	status := l.get("/nodes/pv1-1/qemu/1000/status/current")
	if status["status"] != "running" || status["name"] != "w1" || status["maxmem"] != float64(4<<30) || status["cpus"] != 4.0 {
		t.Errorf("status: %v", status)
	}
	l.ok("POST", "/nodes/pv1-1/qemu/1000/status/stop", nil)
	l.ok("DELETE", "/nodes/pv1-1/qemu/1000", map[string]string{"purge": "1"})
	if _, there := l.find(1000); there {
		t.Error("the VM is still there")
	}
}
