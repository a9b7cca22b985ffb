package controlplane

import (
	"fmt"
	"net/netip"
	"path/filepath"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"aether.internal/aether/lab/controlplane/pki"
)

// Users of the components, as Kubernetes' own roles know them.
const (
	userAdmin             = "kubernetes-admin"
	userControllerManager = "system:kube-controller-manager"
	userScheduler         = "system:kube-scheduler"
	userKubeletClient     = "kube-apiserver-kubelet-client"
	groupMasters          = "system:masters"
)

// makeCertificates makes the authorities and all that the components need.
func (c *ControlPlane) makeCertificates() error {
	var err error
	if c.authority, err = pki.NewAuthority("kubernetes"); err != nil {
		return err
	}
	frontProxy, err := pki.NewAuthority("front-proxy-ca")
	if err != nil {
		return err
	}
	private, public, err := pki.SigningKey()
	if err != nil {
		return err
	}
	files := map[string][]byte{
		"ca.crt": c.authority.Certificate, "ca.key": c.authority.Key,
		"front-proxy-ca.crt": frontProxy.Certificate,
		"sa.key":             private, "sa.pub": public,
		"etcd-ca.crt": c.etcd.CA().Certificate,
		"audit.yaml":  []byte(auditPolicy),
	}
	for name, r := range map[string]struct {
		authority *pki.Authority
		request   pki.Request
	}{
		"apiserver":          {c.authority, c.serverRequest()},
		"kubelet-client":     {c.authority, pki.Request{CommonName: userKubeletClient, Organizations: []string{groupMasters}}},
		"front-proxy-client": {frontProxy, pki.Request{CommonName: "front-proxy-client"}},
		"etcd-client":        {c.etcd.authority, pki.Request{CommonName: "root"}},
		"local":              {c.authority, pki.Request{CommonName: "localhost", Names: []string{"localhost"}, Addresses: []netip.Addr{loopback()}}},
	} {
		pair, err := r.authority.Issue(r.request)
		if err != nil {
			return err
		}
		files[name+".crt"], files[name+".key"] = pair.Certificate, pair.Key
	}
	for name, user := range map[string]string{"controller-manager": userControllerManager, "scheduler": userScheduler} {
		if files[name+".kubeconfig"], err = c.ClientKubeconfig(user); err != nil {
			return err
		}
	}
	if c.kubeconfig, err = c.ClientKubeconfig(userAdmin, groupMasters); err != nil {
		return err
	}
	files["admin.kubeconfig"] = c.kubeconfig
	return writeFiles(c.file(""), files)
}

// serverRequest is what the API server's certificate states.
func (c *ControlPlane) serverRequest() pki.Request {
	const service = "kubernetes.default"
	return pki.Request{
		CommonName: "kube-apiserver",
		Names:      append([]string{"localhost", "kubernetes", service, service + ".svc", service + ".svc.cluster.local"}, c.cfg.Names...),
		Addresses:  append([]netip.Addr{loopback(), c.cfg.Address, serviceAddress(c.cfg.ServiceCIDR, 1)}, c.cfg.Addresses...),
	}
}

func loopback() netip.Addr { return netip.AddrFrom4([4]byte{127, 0, 0, 1}) }

// file is where a certificate or another file for the components lies.
func (c *ControlPlane) file(name string) string { return filepath.Join(c.cfg.Dir, "pki", name) }

// ClientKubeconfig makes a kubeconfig with a client certificate of that user
// and groups, so that each program has a name in the audit log and no more
// rights than it is given.
func (c *ControlPlane) ClientKubeconfig(user string, groups ...string) ([]byte, error) {
	pair, err := c.authority.Issue(pki.Request{CommonName: user, Organizations: groups})
	if err != nil {
		return nil, err
	}
	config := clientcmdapi.NewConfig()
	config.Clusters[c.cfg.Name] = &clientcmdapi.Cluster{Server: c.Endpoint(), CertificateAuthorityData: c.authority.Certificate}
	config.AuthInfos[user] = &clientcmdapi.AuthInfo{ClientCertificateData: pair.Certificate, ClientKeyData: pair.Key}
	config.Contexts[c.cfg.Name] = &clientcmdapi.Context{Cluster: c.cfg.Name, AuthInfo: user}
	config.CurrentContext = c.cfg.Name
	data, err := clientcmd.Write(*config)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig of %s: %w", user, err)
	}
	return data, nil
}

// IssueServing makes a server's certificate that the cluster's authority
// signed, as the one a kubelet serves with.
func (c *ControlPlane) IssueServing(r pki.Request) (pki.Pair, error) { return c.authority.Issue(r) }

// auditPolicy notes who asked for what, and when it was answered; contents,
// and so Secrets, are left out.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
omitManagedFields: true
rules:
- level: None
  nonResourceURLs: ["/healthz*", "/livez*", "/readyz*", "/openapi/*", "/version"]
- level: Metadata
`
