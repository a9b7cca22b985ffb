package kamaji

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"aether.internal/aether/lab/kamaji/v1alpha1"
)

type status = v1alpha1.TenantControlPlaneStatus

type objectStatus = v1alpha1.ObjectStatus

func (p *pass) ensureCA(ctx context.Context) (bool, error) {
	return p.ensureAuthority(ctx, secretRule{
		suffix: suffixCA,
		make: func(*corev1.Secret) (map[string][]byte, error) {
			ca, err := newCA("kubernetes", p.cfg.Started)
			if err != nil {
				return nil, err
			}
			return map[string][]byte{
				"ca.crt": ca.certPEM, "ca.key": ca.keyPEM,
				corev1.TLSCertKey: ca.certPEM, corev1.TLSPrivateKeyKey: ca.keyPEM, // Cluster API's names
			}, nil
		},
		status: func(s *status) *objectStatus { return &s.Certificates.CA },
	}, "ca", &p.ca)
}

func (p *pass) ensureFrontProxyCA(ctx context.Context) (bool, error) {
	return p.ensureAuthority(ctx, secretRule{
		suffix: suffixFrontProxyCA,
		make: func(*corev1.Secret) (map[string][]byte, error) {
			ca, err := newCA("front-proxy-ca", p.cfg.Started)
			if err != nil {
				return nil, err
			}
			return map[string][]byte{"front-proxy-ca.crt": ca.certPEM, "front-proxy-ca.key": ca.keyPEM}, nil
		},
		status: func(s *status) *objectStatus { return &s.Certificates.FrontProxyCA },
	}, "front-proxy-ca", &p.frontProxyCA)
}

// ensureAuthority makes an authority and remembers it for the steps after.
func (p *pass) ensureAuthority(ctx context.Context, rule secretRule, file string, into **keyPair) (bool, error) {
	rule.good = func(secret *corev1.Secret) bool {
		pair, err := secretPair(secret, file+".crt", file+".key")
		return err == nil && pair.cert.IsCA
	}
	known := rule.status(&p.tcp.Status).Checksum
	wrote, err := p.ensureSecret(ctx, rule)
	if err != nil {
		return false, err
	}
	*into, err = secretPair(p.secrets[rule.suffix], file+".crt", file+".key")
	if err != nil {
		return false, err
	}
	if rule.suffix != suffixCA || known == "" || known == p.tcp.Status.Certificates.CA.Checksum {
		return wrote, nil
	}
	return p.setStatus(ctx, func(s *status) { s.Kubernetes.Version.Status = v1alpha1.VersionCARotating })
}

func (p *pass) ensureServiceAccountKey(ctx context.Context) (bool, error) {
	return p.ensureSecret(ctx, secretRule{
		suffix: suffixSA,
		good: func(secret *corev1.Secret) bool {
			return len(secret.Data["sa.key"]) > 0 && len(secret.Data["sa.pub"]) > 0
		},
		make: func(*corev1.Secret) (map[string][]byte, error) {
			key, private, err := newKey()
			if err != nil {
				return nil, err
			}
			public, err := encodePublicKey(key)
			if err != nil {
				return nil, err
			}
			return map[string][]byte{"sa.key": private, "sa.pub": public}, nil
		},
		status: func(s *status) *objectStatus { return &s.Certificates.SA },
	})
}

// ensureAPIServerCertificate renews the serving certificate when a wanted name
// is missing; names that are no longer wanted stay until then.
func (p *pass) ensureAPIServerCertificate(ctx context.Context) (bool, error) {
	if net.ParseIP(p.host) == nil {
		return false, fmt.Errorf("couldn't create %q certificate: error parsing LocalAPIEndpoint AdvertiseAddress %s: is not a valid textual representation of an IP address", "apiserver", p.host)
	}
	inherited := pairGood(p.ca, "apiserver.crt", "apiserver.key")
	late, err := p.advertiseIsLate(ctx)
	if err != nil {
		return false, err
	}
	wanted := append([]string{p.host}, p.spec().NetworkProfile.CertSANs...)
	if !late {
		wanted = append(wanted, p.advertise())
	}
	return p.ensureSecret(ctx, secretRule{
		suffix: suffixAPIServer, lifecycle: lifecycleX509,
		good: func(secret *corev1.Secret) bool {
			if !inherited(secret) {
				return false
			}
			pair, err := secretPair(secret, "apiserver.crt", "apiserver.key")
			return err == nil && len(missingSANs(pair.cert, wanted)) == 0
		},
		make: func(*corev1.Secret) (map[string][]byte, error) {
			names, err := p.servingNames()
			if err != nil {
				return nil, err
			}
			l := p.kubeadmLeaf(pkix.Name{CommonName: "kube-apiserver"}, x509.ExtKeyUsageServerAuth)
			l.dnsNames, l.ips = splitSANs(names)
			return issueFiles(p.ca, l, "apiserver")
		},
		status: func(s *status) *objectStatus { return &s.Certificates.APIServer },
	})
}

// advertiseIsLate tells that the Deployment still has an older advertise
// address: the real one then rolls the new flag out first, and half a second
// later, in a second rollout, the certificate that covers it.
func (p *pass) advertiseIsLate(ctx context.Context) (bool, error) {
	if err := p.readDeployment(ctx); err != nil || p.deployment == nil {
		return false, err
	}
	flag := "--advertise-address=" + p.advertise()
	for _, container := range p.deployment.Spec.Template.Spec.Containers {
		if container.Name == containerAPIServer && !slices.Contains(container.Args, flag) {
			p.again = p.cfg.Clock.Scale(retryAfter / 2)
			return true, nil
		}
	}
	return false, nil
}

func (p *pass) servingNames() ([]string, error) {
	first, err := firstServiceIP(p.serviceCIDRs()[0])
	if err != nil {
		return nil, err
	}
	domain := p.spec().NetworkProfile.ClusterDomain
	names := []string{
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc." + domain,
		"localhost", "node", first, p.host, p.advertise(), "127.0.0.1",
	}
	return append(names, p.kubeadmSANs()...), nil
}

func firstServiceIP(cidr string) (string, error) {
	prefix, err := netip.ParsePrefix(cidr)
	if err != nil {
		return "", fmt.Errorf("first service address: %w", err)
	}
	return prefix.Masked().Addr().Next().String(), nil
}

func (p *pass) ensureKubeletClient(ctx context.Context) (bool, error) {
	return p.ensureLeaf(ctx, suffixKubeletClient, "apiserver-kubelet-client", "kube-apiserver-kubelet-client", p.ca,
		func(s *status) *objectStatus { return &s.Certificates.APIServerKubeletClient })
}

func (p *pass) ensureFrontProxyClient(ctx context.Context) (bool, error) {
	return p.ensureLeaf(ctx, suffixFrontProxyClient, "front-proxy-client", "front-proxy-client", p.frontProxyCA,
		func(s *status) *objectStatus { return &s.Certificates.FrontProxyClient })
}

func (p *pass) ensureLeaf(ctx context.Context, suffix, file, commonName string, ca *keyPair, entry func(*status) *objectStatus) (bool, error) {
	return p.ensureSecret(ctx, secretRule{
		suffix: suffix, lifecycle: lifecycleX509,
		good: pairGood(ca, file+".crt", file+".key"),
		make: func(*corev1.Secret) (map[string][]byte, error) {
			return issueFiles(ca, p.kubeadmLeaf(pkix.Name{CommonName: commonName}, x509.ExtKeyUsageClientAuth), file)
		},
		status: entry,
	})
}

func (k *Kamaji) kubeadmLeaf(subject pkix.Name, usage x509.ExtKeyUsage) leaf {
	return leaf{subject: subject, usages: []x509.ExtKeyUsage{usage}, from: k.leafFrom(), to: k.leafTo()}
}

func issueFiles(ca *keyPair, l leaf, file string) (map[string][]byte, error) {
	pair, err := ca.issue(l)
	if err != nil {
		return nil, err
	}
	return map[string][]byte{file + ".crt": pair.certPEM, file + ".key": pair.keyPEM}, nil
}
