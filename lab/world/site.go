package world

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"

	"golang.org/x/crypto/ssh"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"aether.internal/aether/lab/machine"
	"aether.internal/aether/lab/proxmox"
	"aether.internal/aether/lab/site"
)

// writeSite writes what the operator of this site would: the site file with
// the certificates it names, the Secrets it refers to, and the codec's keys.
func (w *World) writeSite(ctx context.Context) error {
	if err := w.createNamespace(ctx, systemNamespace); err != nil {
		return err
	}
	token, key := w.access.credentials()
	client, err := kubernetes.NewForConfig(w.administrator())
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: "proxmox-homelab"},
		StringData: map[string]string{"token": token, "ssh-key": string(key)},
	}
	if _, err := client.CoreV1().Secrets(systemNamespace).Create(ctx, secret, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create secret %s: %w", secret.Name, err)
	}
	knownHosts, err := w.knownHosts(ctx)
	if err != nil {
		return err
	}
	keys, err := site.NewCodecKeys()
	if err != nil {
		return err
	}
	w.secrets.add("codec key", keys.Secret)
	return site.Write(site.Config{
		Example: filepath.Join(w.opts.Source, "examples", "site.yaml"), Dir: w.siteDir(),
		CiliumChart: filepath.Join(w.opts.Source, "lab", "charts", "cilium"),
		ProxmoxCA:   w.Proxmox.CAPEM(), HarborCA: w.Registry.CAPEM(), SSHUser: sshUser, KnownHosts: knownHosts, CodecKeys: keys,
	})
}

func (w *World) siteDir() string { return filepath.Join(w.opts.Dir, "site") }

// SiteFile is the site file that the product is started with.
func (w *World) SiteFile() string { return site.File(w.siteDir()) }

// knownHosts asks each host for its SSH key, as ssh-keyscan does.
func (w *World) knownHosts(ctx context.Context) ([]site.KnownHost, error) {
	var hosts []site.KnownHost
	for _, node := range proxmoxNodes() {
		address := net.JoinHostPort(node.Address, "22")
		conn, err := w.Fabric.Platform().DialContext(ctx, "tcp", address)
		if err != nil {
			return nil, fmt.Errorf("ask %s for its SSH key: %w", node.Name, err)
		}
		key, err := scanKey(conn, address)
		if err != nil {
			return nil, fmt.Errorf("ask %s for its SSH key: %w", node.Name, err)
		}
		hosts = append(hosts, site.KnownHost{Address: node.Address, Key: key})
	}
	return hosts, nil
}

func scanKey(conn net.Conn, address string) (key ssh.PublicKey, err error) {
	defer func() { _ = conn.Close() }() // only the key was wanted
	_, _, _, err = ssh.NewClientConn(conn, address, &ssh.ClientConfig{
		User: sshUser,
		HostKeyCallback: func(_ string, _ net.Addr, shown ssh.PublicKey) error {
			key = shown
			return nil
		},
	})
	if key == nil { // otherwise the refused login is what a scan ends with
		return nil, errors.Join(errors.New("it showed none"), err)
	}
	return key, nil
}

// proxmoxNodes are the hosts of the lab's cluster.
func proxmoxNodes() []proxmox.Node {
	return proxmox.HomeLab(machine.Image{}, machine.Image{}).Nodes
}
