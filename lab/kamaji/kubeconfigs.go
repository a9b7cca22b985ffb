package kamaji

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
)

// kubeconfigRule is one Secret's set of kubeconfigs for one user.
type kubeconfigRule struct {
	suffix   string
	user     string
	subject  pkix.Name
	servers  map[string]string // key of the Secret → server
	followup bool              // the port is followed when it changes
	status   func(*status) *objectStatus
}

func (p *pass) ensureAdmin(ctx context.Context) (bool, error) {
	return p.ensureKubeconfig(ctx, kubeconfigRule{
		suffix: suffixAdmin, user: "kubernetes-admin", followup: true,
		subject: pkix.Name{Organization: []string{"kubeadm:cluster-admins"}, CommonName: "kubernetes-admin"},
		servers: map[string]string{"admin.conf": p.publicServer(), "admin.svc": p.serviceServer()},
		status:  func(s *status) *objectStatus { return &s.KubeConfig.Admin },
	})
}

// ensureSuperAdmin adds to the same Secret, a moment later.
func (p *pass) ensureSuperAdmin(ctx context.Context) (bool, error) {
	return p.ensureKubeconfig(ctx, kubeconfigRule{
		suffix: suffixAdmin, user: "kubernetes-super-admin",
		subject: pkix.Name{Organization: []string{"system:masters"}, CommonName: "kubernetes-super-admin"},
		servers: map[string]string{"super-admin.conf": p.publicServer(), "super-admin.svc": p.serviceServer()},
		status:  func(s *status) *objectStatus { return &s.KubeConfig.Admin },
	})
}

func (p *pass) ensureControllerManager(ctx context.Context) (bool, error) {
	return p.ensureComponent(ctx, suffixController, "controller-manager.conf", "system:kube-controller-manager",
		func(s *status) *objectStatus { return &s.KubeConfig.ControllerManager })
}

func (p *pass) ensureScheduler(ctx context.Context) (bool, error) {
	return p.ensureComponent(ctx, suffixScheduler, "scheduler.conf", "system:kube-scheduler",
		func(s *status) *objectStatus { return &s.KubeConfig.Scheduler })
}

func (p *pass) ensureComponent(ctx context.Context, suffix, key, user string, entry func(*status) *objectStatus) (bool, error) {
	return p.ensureKubeconfig(ctx, kubeconfigRule{
		suffix: suffix, user: user, subject: pkix.Name{CommonName: user}, followup: true,
		servers: map[string]string{key: serverURL("127.0.0.1", p.port())}, status: entry,
	})
}

func (p *pass) publicServer() string { return serverURL(p.advertise(), p.port()) }

func (p *pass) serviceServer() string { return serverURL(p.serviceHost(), p.port()) }

// serviceHost is the one name that Kamaji itself dials.
func (p *pass) serviceHost() string { return p.tcp.Name + "." + p.tcp.Namespace + ".svc" }

// ensureKubeconfig keeps what is there as long as the authority, the
// certificate and (perhaps) the port are right; the host is never compared,
// so an old one stays.
func (p *pass) ensureKubeconfig(ctx context.Context, rule kubeconfigRule) (bool, error) {
	return p.ensureSecret(ctx, secretRule{
		suffix: rule.suffix, lifecycle: lifecycleKubeconfig, status: rule.status,
		good: func(secret *corev1.Secret) bool {
			for key := range rule.servers {
				if !p.kubeconfigGood(secret.Data[key], rule.followup) {
					return false
				}
			}
			return true
		},
		make: func(*corev1.Secret) (map[string][]byte, error) {
			pair, err := p.ca.issue(p.kubeadmLeaf(rule.subject, x509.ExtKeyUsageClientAuth))
			if err != nil {
				return nil, err
			}
			files := map[string][]byte{}
			for key, server := range rule.servers {
				files[key], err = kubeconfig(p.tcp.Name, rule.user, server, p.ca.certPEM, pair)
				if err != nil {
					return nil, err
				}
			}
			return files, nil
		},
		checksum: p.kubeconfigSum,
	})
}

func (p *pass) kubeconfigGood(data []byte, checkPort bool) bool {
	if len(data) == 0 {
		return false
	}
	cluster, user, err := readKubeconfig(data)
	if err != nil || string(cluster.CertificateAuthorityData) != string(p.ca.certPEM) {
		return false
	}
	cert, err := parseCertificate(user.ClientCertificateData)
	if err != nil || !p.ca.issued(cert) || expired(cert) {
		return false
	}
	return !checkPort || serverPort(cluster.Server) == strconv.Itoa(int(p.port()))
}

// kubeconfigSum covers the authority as well, so it differs from the sum that
// the pods' label has.
func (p *pass) kubeconfigSum(data map[string][]byte) string {
	all := map[string][]byte{"~ca": p.ca.certPEM, "~port": fmt.Append(nil, p.port())}
	for key, value := range data {
		all[key] = value
	}
	return sum(all)
}
