package kamaji

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The ConfigMap holds kubeadm's internal types as JSON, hence the Go names.

type kubeadmArg struct {
	Name  string
	Value string
}

type kubeadmAPIServer struct {
	ExtraArgs []kubeadmArg
	CertSANs  []string
}

type kubeadmExternalEtcd struct {
	Endpoints []string
	CAFile    string
	CertFile  string
	KeyFile   string
}

type kubeadmEtcd struct {
	Local    *struct{}
	External *kubeadmExternalEtcd
}

type kubeadmNetworking struct {
	ServiceSubnet string
	PodSubnet     string
	DNSDomain     string
}

type kubeadmCluster struct {
	ComponentConfigs            *struct{}
	Etcd                        kubeadmEtcd
	Networking                  kubeadmNetworking
	KubernetesVersion           string
	ControlPlaneEndpoint        string
	APIServer                   kubeadmAPIServer
	CertificatesDir             string
	ImageRepository             string
	ClusterName                 string
	EncryptionAlgorithm         string
	CertificateValidityPeriod   string
	CACertificateValidityPeriod string
}

type kubeadmToken struct {
	Token  string   `json:"token"`
	TTL    string   `json:"ttl"`
	Usages []string `json:"usages"`
	Groups []string `json:"groups"`
}

type kubeadmInit struct {
	BootstrapTokens  []kubeadmToken
	NodeRegistration struct{ Name string }
	LocalAPIEndpoint struct {
		AdvertiseAddress string
		BindPort         int32
	}
}

const tokenGroup = "system:bootstrappers:kubeadm:default-node-token"

// kubeadmSANs are the names in kubeadm's configuration, in its order.
func (p *pass) kubeadmSANs() []string {
	t, network := p.tcp, p.spec().NetworkProfile
	names := []string{
		"127.0.0.1", "localhost", t.Name, p.serviceHost(), p.serviceHost() + "." + network.ClusterDomain, p.host,
	}
	names = append(names, network.CertSANs...)
	return append(names, p.advertise())
}

func (p *pass) serviceCIDRs() []string {
	if cidrs := p.spec().NetworkProfile.ServiceCIDRs; len(cidrs) > 0 {
		return cidrs
	}
	return []string{p.spec().NetworkProfile.ServiceCIDR}
}

func (p *pass) podCIDRs() []string {
	if cidrs := p.spec().NetworkProfile.PodCIDRs; len(cidrs) > 0 {
		return cidrs
	}
	return []string{p.spec().NetworkProfile.PodCIDR}
}

func (p *pass) advertiseEndpoint() string {
	return net.JoinHostPort(p.advertise(), strconv.Itoa(int(p.port())))
}

func (p *pass) clusterConfiguration() kubeadmCluster {
	return kubeadmCluster{
		Etcd: kubeadmEtcd{External: &kubeadmExternalEtcd{
			Endpoints: p.store.endpoints,
			CAFile:    "/etc/kubernetes/pki/etcd/ca.crt", CertFile: "/etc/kubernetes/pki/etcd/server.crt", KeyFile: "/etc/kubernetes/pki/etcd/server.key",
		}},
		Networking: kubeadmNetworking{
			ServiceSubnet: joinComma(p.serviceCIDRs()), PodSubnet: joinComma(p.podCIDRs()), DNSDomain: p.spec().NetworkProfile.ClusterDomain,
		},
		KubernetesVersion:    p.spec().Kubernetes.Version,
		ControlPlaneEndpoint: p.advertiseEndpoint(),
		APIServer: kubeadmAPIServer{
			// The prefix is wrong in the real one too; nothing reads it.
			ExtraArgs: []kubeadmArg{{"etcd-compaction-interval", "0s"}, {"etcd-prefix", "/" + p.tcp.Name}},
			CertSANs:  p.kubeadmSANs(),
		},
		CertificatesDir: "/etc/kubernetes/pki", ImageRepository: "registry.k8s.io", ClusterName: p.tcp.Name,
		EncryptionAlgorithm: "RSA-2048", CertificateValidityPeriod: leafValidity.String(), CACertificateValidityPeriod: caValidity.String(),
	}
}

func (p *pass) initConfiguration() kubeadmInit {
	init := kubeadmInit{BootstrapTokens: []kubeadmToken{{
		// kubeadm's documented placeholder: no such token is ever created.
		Token: "abcdef.0123456789abcdef", TTL: "24h0m0s",
		Usages: []string{"signing", "authentication"}, Groups: []string{tokenGroup},
	}}}
	init.NodeRegistration.Name = "node"
	init.LocalAPIEndpoint.AdvertiseAddress = p.host
	init.LocalAPIEndpoint.BindPort = p.port()
	return init
}

func (p *pass) ensureKubeadmConfig(ctx context.Context) (bool, error) {
	cluster, err := json.Marshal(p.clusterConfiguration())
	if err != nil {
		return false, fmt.Errorf("encode ClusterConfiguration: %w", err)
	}
	initial, err := json.Marshal(p.initConfiguration())
	if err != nil {
		return false, fmt.Errorf("encode InitConfiguration: %w", err)
	}
	data := map[string]string{"ClusterConfiguration": string(cluster), "InitConfiguration": string(initial)}
	wrote, err := p.ensureConfigMap(ctx, suffixKubeadm, data)
	if err != nil {
		return false, err
	}
	checksum := sumStrings(data)
	told, err := p.setStatus(ctx, func(s *status) {
		if s.KubeadmConfig.Checksum != checksum {
			s.KubeadmConfig.ConfigmapName = p.name(suffixKubeadm)
			s.KubeadmConfig.Checksum, s.KubeadmConfig.LastUpdate = checksum, now()
		}
	})
	return wrote || told, err
}

func (p *pass) ensureConfigMap(ctx context.Context, suffix string, data map[string]string) (bool, error) {
	configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: p.tcp.Namespace, Name: p.name(suffix)}}
	exists, err := p.fetch(ctx, configMap)
	if err != nil {
		return false, fmt.Errorf("read configmap %s: %w", configMap.Name, err)
	}
	checksum := sumStrings(data)
	if exists && sumStrings(configMap.Data) == checksum {
		return false, nil
	}
	configMap.Data = data
	metav1.SetMetaDataAnnotation(&configMap.ObjectMeta, annotationChecksum, checksum)
	if err := p.own(configMap, suffix); err != nil {
		return false, err
	}
	if exists {
		err = p.api.Update(ctx, configMap)
	} else {
		err = p.api.Create(ctx, configMap)
	}
	if err != nil {
		return false, fmt.Errorf("write configmap %s: %w", configMap.Name, err)
	}
	return true, nil
}
