package kamaji

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

const (
	clusterInfo   = "cluster-info"
	kubeadmConfig = "kubeadm-config"
	kubeletConfig = "kubelet-config"

	groupNodes       = "system:nodes"
	nodesKubeadmRole = "kubeadm:nodes-kubeadm-config"
	kubeletRole      = "kubeadm:kubelet-config"
	signerRole       = "kubeadm:bootstrap-signer-clusterinfo"
	getNodes         = "kubeadm:get-nodes"
	nodeClientRole   = "system:certificates.k8s.io:certificatesigningrequests:nodeclient"
	selfClientRole   = "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient"
)

// kubeadmPieces are the objects of kubeadm's phases, in their order of
// appearance; cluster-info and the right to read it come last.
func (p *pass) kubeadmPieces(caPEM []byte) ([]piece, error) {
	cluster, err := yaml.Marshal(p.clusterConfigurationV1beta4())
	if err != nil {
		return nil, fmt.Errorf("encode kubeadm-config: %w", err)
	}
	kubelet, err := yaml.Marshal(p.kubeletConfiguration())
	if err != nil {
		return nil, fmt.Errorf("encode kubelet-config: %w", err)
	}
	info, err := p.clusterInfo(caPEM)
	if err != nil {
		return nil, err
	}
	objects := []client.Object{configMap(nsSystem, kubeadmConfig, "ClusterConfiguration", string(cluster))}
	objects = append(objects, readConfigMap(nsSystem, nodesKubeadmRole, kubeadmConfig, group(tokenGroup), group(groupNodes))...)
	objects = append(objects, configMap(nsSystem, kubeletConfig, "kubelet", string(kubelet)))
	objects = append(objects, readConfigMap(nsSystem, kubeletRole, kubeletConfig, group(groupNodes), group(tokenGroup))...)
	objects = append(objects,
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: getNodes}, Rules: []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"nodes"}}}},
		clusterBinding("kubeadm:cluster-admins", "cluster-admin", group("kubeadm:cluster-admins")),
		clusterBinding(getNodes, getNodes, group(tokenGroup)),
		clusterBinding("kubeadm:kubelet-bootstrap", "system:node-bootstrapper", group(tokenGroup)),
		clusterBinding("kubeadm:node-autoapprove-bootstrap", nodeClientRole, group(tokenGroup)),
		clusterBinding("kubeadm:node-autoapprove-certificate-rotation", selfClientRole, group(groupNodes)),
		clusterBinding("kubeadm:apiserver-kubelet-client", "system:kubelet-api-admin", user("kube-apiserver-kubelet-client")))
	pieces := make([]piece, 0, len(objects)+3) //nolint:mnd // cluster-info, its Role and binding
	for _, object := range objects {
		pieces = append(pieces, piece{object: object})
	}
	pieces = append(pieces, piece{object: configMap(nsPublic, clusterInfo, "kubeconfig", string(info)), once: true})
	for _, object := range readConfigMap(nsPublic, signerRole, clusterInfo, user("system:anonymous")) {
		pieces = append(pieces, piece{object: object})
	}
	return pieces, nil
}

// clusterInfo is a kubeconfig of one cluster without a name, and no user.
func (p *pass) clusterInfo(caPEM []byte) ([]byte, error) {
	data, err := clientcmd.Write(clientcmdapi.Config{Clusters: map[string]*clientcmdapi.Cluster{
		"": {Server: p.publicServer(), CertificateAuthorityData: caPEM},
	}})
	if err != nil {
		return nil, fmt.Errorf("encode cluster-info: %w", err)
	}
	return data, nil
}

func (p *pass) clusterConfigurationV1beta4() map[string]any {
	internal := p.clusterConfiguration()
	return map[string]any{
		"apiVersion": "kubeadm.k8s.io/v1beta4", "kind": "ClusterConfiguration",
		"apiServer": map[string]any{
			"certSANs":  internal.APIServer.CertSANs,
			"extraArgs": []map[string]string{{"name": "etcd-compaction-interval", "value": "0s"}, {"name": "etcd-prefix", "value": "/" + p.tcp.Name}},
		},
		"caCertificateValidityPeriod": internal.CACertificateValidityPeriod, "certificateValidityPeriod": internal.CertificateValidityPeriod,
		"certificatesDir": internal.CertificatesDir, "clusterName": internal.ClusterName,
		"controlPlaneEndpoint": internal.ControlPlaneEndpoint, "encryptionAlgorithm": internal.EncryptionAlgorithm,
		"controllerManager": map[string]any{}, "scheduler": map[string]any{}, "dns": map[string]any{}, "proxy": map[string]any{},
		"etcd": map[string]any{"external": map[string]any{
			"endpoints": internal.Etcd.External.Endpoints, "caFile": internal.Etcd.External.CAFile,
			"certFile": internal.Etcd.External.CertFile, "keyFile": internal.Etcd.External.KeyFile,
		}},
		"imageRepository": internal.ImageRepository, "kubernetesVersion": internal.KubernetesVersion,
		"networking": map[string]any{
			"dnsDomain": internal.Networking.DNSDomain, "podSubnet": internal.Networking.PodSubnet, "serviceSubnet": internal.Networking.ServiceSubnet,
		},
	}
}

// kubeletConfiguration has all defaults written out.
func (p *pass) kubeletConfiguration() map[string]any {
	driver := p.spec().Kubernetes.Kubelet.CGroupFS
	if driver == "" {
		driver = "systemd"
	}
	return map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"authentication": map[string]any{
			"anonymous": map[string]any{"enabled": false}, "webhook": map[string]any{"enabled": true, "cacheTTL": "2m0s"},
			"x509": map[string]any{"clientCAFile": "/etc/kubernetes/pki/ca.crt"},
		},
		"authorization": map[string]any{"mode": "Webhook", "webhook": map[string]any{"cacheAuthorizedTTL": "5m0s", "cacheUnauthorizedTTL": "30s"}},
		"cgroupDriver":  driver, "cgroupsPerQOS": true, "enforceNodeAllocatable": []string{"pods"},
		"clusterDNS": p.spec().NetworkProfile.DNSServiceIPs, "clusterDomain": p.spec().NetworkProfile.ClusterDomain,
		"containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock", "containerLogMaxFiles": 5, "containerLogMaxSize": "10Mi",
		"cpuManagerPolicy": "none", "cpuManagerReconcilePeriod": "10s", "eventBurst": 100, "eventRecordQPS": 50,
		"evictionPressureTransitionPeriod": "5m0s", "failSwapOn": true, "fileCheckFrequency": "20s", "hairpinMode": "promiscuous-bridge",
		"healthzBindAddress": "127.0.0.1", "healthzPort": 10248, "httpCheckFrequency": "20s",
		"imageGCHighThresholdPercent": 85, "imageGCLowThresholdPercent": 80, "imageMinimumGCAge": "2m0s",
		"kubeAPIBurst": 100, "kubeAPIQPS": 50, "makeIPTablesUtilChains": true, "maxOpenFiles": 1000000, "maxPods": 110,
		"memoryManagerPolicy": "None", "nodeLeaseDurationSeconds": 40, "nodeStatusReportFrequency": "5m0s", "nodeStatusUpdateFrequency": "10s",
		"podPidsLimit": -1, "port": 10250, "registryBurst": 10, "registryPullQPS": 5, "resolvConf": "/etc/resolv.conf",
		"rotateCertificates": true, "runtimeRequestTimeout": "2m0s", "serializeImagePulls": true, "staticPodPath": "/etc/kubernetes/manifests",
		"streamingConnectionIdleTimeout": "4h0m0s", "syncFrequency": "1m0s", "topologyManagerPolicy": "none", "topologyManagerScope": "container",
		"volumeStatsAggPeriod": "1m0s",
	}
}

func configMap(namespace, name, key, value string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Data: map[string]string{key: value}}
}

// readConfigMap is a Role to get one ConfigMap and its binding.
func readConfigMap(namespace, role, name string, subjects ...rbacv1.Subject) []client.Object {
	meta := metav1.ObjectMeta{Namespace: namespace, Name: role}
	return []client.Object{
		&rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{
			Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{name},
		}}},
		&rbacv1.RoleBinding{
			ObjectMeta: meta, Subjects: subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role},
		},
	}
}

func clusterBinding(name, role string, subjects ...rbacv1.Subject) *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Subjects: subjects,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
	}
}

func group(name string) rbacv1.Subject {
	return rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: name}
}

func user(name string) rbacv1.Subject {
	return rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}
}

func account(name string) rbacv1.Subject {
	return rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: nsSystem, Name: name}
}
