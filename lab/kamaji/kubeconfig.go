package kamaji

import (
	"fmt"
	"net"
	"net/url"
	"strconv"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// kubeconfig writes a self-contained kubeconfig of one cluster and one user.
func kubeconfig(cluster, user, server string, ca []byte, client *keyPair) ([]byte, error) {
	name := user + "@" + cluster
	config := clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{cluster: {Server: server, CertificateAuthorityData: ca}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{user: {ClientCertificateData: client.certPEM, ClientKeyData: client.keyPEM}},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: cluster, AuthInfo: user}},
		CurrentContext: name,
	}
	data, err := clientcmd.Write(config)
	if err != nil {
		return nil, fmt.Errorf("write kubeconfig of %s: %w", user, err)
	}
	return data, nil
}

// readKubeconfig returns what a kubeconfig of ours holds.
func readKubeconfig(data []byte) (cluster clientcmdapi.Cluster, user clientcmdapi.AuthInfo, err error) {
	config, err := clientcmd.Load(data)
	if err != nil {
		return cluster, user, fmt.Errorf("read kubeconfig: %w", err)
	}
	context := config.Contexts[config.CurrentContext]
	if context == nil || config.Clusters[context.Cluster] == nil || config.AuthInfos[context.AuthInfo] == nil {
		return cluster, user, fmt.Errorf("read kubeconfig: current context %q is not complete", config.CurrentContext)
	}
	return *config.Clusters[context.Cluster], *config.AuthInfos[context.AuthInfo], nil
}

// serverPort returns the port of a kubeconfig's server.
func serverPort(server string) string {
	parsed, err := url.Parse(server)
	if err != nil {
		return ""
	}
	return parsed.Port()
}

func serverURL(host string, port int32) string {
	return "https://" + net.JoinHostPort(host, strconv.Itoa(int(port)))
}
