package controlplane

import (
	"net/netip"
	"strconv"
)

// garbagePercent is GOGC of the API server and the controllers. Most of their
// memory is waiting to be collected: at half of Go's usual growth they take
// distinctly less, for processor time that a lab's load does not notice.
const garbagePercent = "GOGC=50"

func (c *ControlPlane) arguments(component Component) []string {
	var args []string
	switch component {
	case EtcdComponent:
		return nil // Etcd knows its own
	case APIServer:
		args = c.apiServerArguments()
	case ControllerManager:
		args = c.controllerManagerArguments()
	case Scheduler:
		args = c.schedulerArguments()
	}
	return append(args, c.cfg.Arguments[component]...)
}

func (c *ControlPlane) apiServerArguments() []string {
	return []string{
		"--advertise-address=" + c.cfg.Address.String(),
		// Its address alone: others listen on the same port of the same
		// namespace's other addresses.
		"--bind-address=" + c.cfg.Address.String(),
		"--secure-port=" + strconv.Itoa(c.cfg.Ports.APIServer),
		"--service-cluster-ip-range=" + c.cfg.ServiceCIDR.String(),
		"--tls-cert-file=" + c.file("apiserver.crt"), "--tls-private-key-file=" + c.file("apiserver.key"),
		"--client-ca-file=" + c.file("ca.crt"),
		"--etcd-servers=" + c.etcd.Endpoint(),
		"--etcd-cafile=" + c.file("etcd-ca.crt"),
		"--etcd-certfile=" + c.file("etcd-client.crt"), "--etcd-keyfile=" + c.file("etcd-client.key"),
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--enable-bootstrap-token-auth",
		"--allow-privileged",
		"--kubelet-client-certificate=" + c.file("kubelet-client.crt"), "--kubelet-client-key=" + c.file("kubelet-client.key"),
		"--kubelet-preferred-address-types=InternalIP,Hostname",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + c.file("sa.pub"), "--service-account-signing-key-file=" + c.file("sa.key"),
		"--requestheader-client-ca-file=" + c.file("front-proxy-ca.crt"),
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + c.file("front-proxy-client.crt"), "--proxy-client-key-file=" + c.file("front-proxy-client.key"),
		"--audit-policy-file=" + c.file("audit.yaml"),
		"--audit-log-path=" + c.AuditLog(), "--audit-log-maxsize=200", "--audit-log-maxbackup=2",
		"--event-ttl=1h",
		"--profiling=false",
		"--v=1",
	}
}

// local are the arguments of a component that is asked for its health only.
func (c *ControlPlane) local(name string, port int) []string {
	kubeconfig := c.file(name + ".kubeconfig")
	return []string{
		"--kubeconfig=" + kubeconfig,
		"--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
		"--bind-address=" + loopback().String(), "--secure-port=" + strconv.Itoa(port),
		"--tls-cert-file=" + c.file("local.crt"), "--tls-private-key-file=" + c.file("local.key"),
		// There is one of each; electing it would only delay a restart.
		"--leader-elect=false",
		"--profiling=false",
		"--v=1",
	}
}

func (c *ControlPlane) controllerManagerArguments() []string {
	args := append(c.local("controller-manager", c.cfg.Ports.ControllerManager),
		"--cluster-name="+c.cfg.Name,
		"--controllers=*,bootstrapsigner,tokencleaner",
		"--use-service-account-credentials",
		"--client-ca-file="+c.file("ca.crt"), "--requestheader-client-ca-file="+c.file("front-proxy-ca.crt"),
		"--root-ca-file="+c.file("ca.crt"),
		"--cluster-signing-cert-file="+c.file("ca.crt"), "--cluster-signing-key-file="+c.file("ca.key"),
		"--service-account-private-key-file="+c.file("sa.key"),
		"--service-cluster-ip-range="+c.cfg.ServiceCIDR.String(),
	)
	if c.cfg.PodCIDR.IsValid() {
		args = append(args, "--allocate-node-cidrs", "--cluster-cidr="+c.cfg.PodCIDR.String())
	}
	return args
}

func (c *ControlPlane) schedulerArguments() []string {
	return c.local("scheduler", c.cfg.Ports.Scheduler)
}

// healthURL is where a component says that it is ready.
func (c *ControlPlane) healthURL(component Component) string {
	local := func(port int) string {
		return "https://" + netip.AddrPortFrom(loopback(), uint16(port)).String() + "/healthz"
	}
	switch component {
	case ControllerManager:
		return local(c.cfg.Ports.ControllerManager)
	case Scheduler:
		return local(c.cfg.Ports.Scheduler)
	case APIServer, EtcdComponent:
	}
	return c.Endpoint() + "/readyz"
}
