package kamaji

import (
	"crypto/md5" //nolint:gosec // the real one sums arguments up with MD5
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
)

const pki = "/etc/kubernetes/pki/"

// arguments returns the command line: safe defaults, which the extra ones may
// replace, and managed flags, which they may not; sorted by flag.
func arguments(defaults map[string]string, extra []string, managed map[string]string) []string {
	all := map[string]string{}
	maps.Copy(all, defaults)
	for _, argument := range extra {
		flag, value, _ := strings.Cut(argument, "=")
		all[flag] = value
	}
	maps.Copy(all, managed)
	list := make([]string, 0, len(all))
	for _, flag := range slices.Sorted(maps.Keys(all)) {
		list = append(list, flag+"="+all[flag])
	}
	return list
}

func (p *pass) apiServerArguments() []string {
	controllers := make([]string, 0, len(p.spec().Kubernetes.AdmissionControllers))
	for _, controller := range p.spec().Kubernetes.AdmissionControllers {
		controllers = append(controllers, string(controller))
	}
	endpoints := make([]string, 0, len(p.store.endpoints))
	for _, endpoint := range p.store.endpoints {
		endpoints = append(endpoints, "https://"+endpoint)
	}
	defaults := map[string]string{
		"--allow-privileged":                   "true",
		"--authorization-mode":                 "Node,RBAC",
		"--enable-bootstrap-token-auth":        "true",
		"--kubelet-preferred-address-types":    strings.Join(p.spec().Kubernetes.Kubelet.PreferredAddressTypes, ","),
		"--requestheader-allowed-names":        "front-proxy-client",
		"--requestheader-extra-headers-prefix": "X-Remote-Extra-",
		"--requestheader-group-headers":        "X-Remote-Group",
		"--requestheader-username-headers":     "X-Remote-User",
		"--service-account-issuer":             "https://kubernetes.default.svc." + p.spec().NetworkProfile.ClusterDomain,
	}
	managed := map[string]string{
		"--advertise-address":                p.advertise(),
		"--client-ca-file":                   pki + "ca.crt",
		"--enable-admission-plugins":         strings.Join(controllers, ","),
		"--etcd-cafile":                      pki + "etcd/ca.crt",
		"--etcd-certfile":                    pki + "etcd/server.crt",
		"--etcd-compaction-interval":         "0",
		"--etcd-keyfile":                     pki + "etcd/server.key",
		"--etcd-prefix":                      "/" + p.schema(),
		"--etcd-servers":                     strings.Join(endpoints, ","),
		"--kubelet-client-certificate":       pki + "apiserver-kubelet-client.crt",
		"--kubelet-client-key":               pki + "apiserver-kubelet-client.key",
		"--proxy-client-cert-file":           pki + "front-proxy-client.crt",
		"--proxy-client-key-file":            pki + "front-proxy-client.key",
		"--requestheader-client-ca-file":     pki + "front-proxy-ca.crt",
		"--secure-port":                      fmt.Sprint(p.port()),
		"--service-account-key-file":         pki + "sa.pub",
		"--service-account-signing-key-file": pki + "sa.key",
		"--service-cluster-ip-range":         joinComma(p.serviceCIDRs()),
		"--tls-cert-file":                    pki + "apiserver.crt",
		"--tls-private-key-file":             pki + "apiserver.key",
	}
	return arguments(defaults, p.extraArguments().apiServer, managed)
}

func (p *pass) schedulerArguments() []string {
	const file = "/etc/kubernetes/scheduler.conf"
	return arguments(map[string]string{"--leader-elect": "true"}, p.extraArguments().scheduler, map[string]string{
		"--authentication-kubeconfig": file, "--authorization-kubeconfig": file, "--kubeconfig": file,
		"--bind-address": "0.0.0.0",
	})
}

func (p *pass) controllerManagerArguments() []string {
	const file = "/etc/kubernetes/controller-manager.conf"
	return arguments(map[string]string{"--leader-elect": "true"}, p.extraArguments().controllerManager, map[string]string{
		"--allocate-node-cidrs":              "true",
		"--authentication-kubeconfig":        file,
		"--authorization-kubeconfig":         file,
		"--bind-address":                     "0.0.0.0",
		"--client-ca-file":                   pki + "ca.crt",
		"--cluster-cidr":                     joinComma(p.podCIDRs()),
		"--cluster-name":                     p.tcp.Name,
		"--cluster-signing-cert-file":        pki + "ca.crt",
		"--cluster-signing-key-file":         pki + "ca.key",
		"--controllers":                      "*,bootstrapsigner,tokencleaner",
		"--kubeconfig":                       file,
		"--requestheader-client-ca-file":     pki + "front-proxy-ca.crt",
		"--root-ca-file":                     pki + "ca.crt",
		"--service-account-private-key-file": pki + "sa.key",
		"--service-cluster-ip-range":         joinComma(p.serviceCIDRs()),
		"--use-service-account-credentials":  "true",
	})
}

type extraArguments struct{ apiServer, controllerManager, scheduler []string }

func (p *pass) extraArguments() extraArguments {
	extra := p.spec().ControlPlane.Deployment.ExtraArgs
	if extra == nil {
		return extraArguments{}
	}
	return extraArguments{extra.APIServer, extra.ControllerManager, extra.Scheduler}
}

func sumArguments(arguments []string) string {
	hash := md5.Sum([]byte(strings.Join(arguments, "\n"))) //nolint:gosec // see the import
	return hex.EncodeToString(hash[:])
}

func joinComma(list []string) string { return strings.Join(list, ",") }
