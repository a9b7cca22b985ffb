// Package controlplane runs a real Kubernetes control plane for the lab: etcd,
// kube-apiserver, kube-controller-manager and kube-scheduler as child
// processes in one network namespace, with certificates of its own. The lab's
// management cluster is one.
//
// It is a control plane only: nodes, and whatever runs on them, are others'
// (lab/kubelet). StartEtcd runs etcd alone, as the store that tenants' control
// planes share.
//
// Each part can be killed and started again to see what its absence does.
package controlplane
