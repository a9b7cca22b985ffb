package kubelet_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func ptr[T any](v T) *T { return &v }

// server is a container that serves HTTP on 8080.
func server() corev1.Container {
	return corev1.Container{
		Name: "main", Image: agnhost, Args: []string{"netexec", "--http-port=8080"},
		ReadinessProbe: &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{
			HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(8080)},
		}},
	}
}

func shell(name, script string) corev1.Container {
	return corev1.Container{Name: name, Image: busybox, Command: []string{"sh", "-c", script}}
}

func TestPodGetsAnAddressAndServes(t *testing.T) {
	n := newNode(t)
	n.run("web", corev1.PodSpec{Containers: []corev1.Container{server()}})
	status := n.await("web", "waiting for the network", func(s corev1.PodStatus) bool {
		return len(s.ContainerStatuses) == 1 && s.ContainerStatuses[0].State.Waiting != nil
	})
	if got := status.ContainerStatuses[0].State.Waiting.Reason; got != "ContainerCreating" {
		t.Errorf("without a network the container is %s, want ContainerCreating", got)
	}
	n.cniReady()
	status = n.await("web", "ready", isReady)
	if status.PodIP != "10.244.7.2" || status.HostIP != nodeIP || status.Phase != corev1.PodRunning {
		t.Errorf("pod is %s at %s on %s", status.Phase, status.PodIP, status.HostIP)
	}
	if got := status.ContainerStatuses[0].ImageID; got != agnhost+"@sha256:0" {
		t.Errorf("image ID is %q", got)
	}
	conn, err := n.node.DialContext(t.Context(), "tcp", "10.244.7.2:8080")
	must(t, err)
	must(t, conn.Close())
}

func TestStatusOfTroubledPods(t *testing.T) {
	n := newNode(t)
	n.cniReady()
	waiting := func(reason string) func(corev1.PodStatus) bool {
		return func(s corev1.PodStatus) bool {
			return len(s.ContainerStatuses) > 0 && s.ContainerStatuses[0].State.Waiting != nil && s.ContainerStatuses[0].State.Waiting.Reason == reason
		}
	}
	phase := func(phase corev1.PodPhase) func(corev1.PodStatus) bool {
		return func(s corev1.PodStatus) bool { return s.Phase == phase }
	}
	cases := []struct {
		name   string
		spec   corev1.PodSpec
		what   string
		wanted func(corev1.PodStatus) bool
	}{
		{
			name: "unknown-image", what: "in ImagePullBackOff", wanted: waiting("ImagePullBackOff"),
			spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "quay.io/nobody/nothing:v1"}}},
		},
		{
			name: "crashing", what: "in CrashLoopBackOff with a restart",
			spec: corev1.PodSpec{Containers: []corev1.Container{shell("main", "exit 3")}},
			wanted: func(s corev1.PodStatus) bool {
				return waiting("CrashLoopBackOff")(s) && s.ContainerStatuses[0].RestartCount > 0 &&
					s.ContainerStatuses[0].LastTerminationState.Terminated.ExitCode == 3
			},
		},
		{
			name: "fails-once", what: "Failed", wanted: phase(corev1.PodFailed),
			spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{shell("main", "exit 3")}},
		},
		{
			name: "completes", what: "Succeeded", wanted: phase(corev1.PodSucceeded),
			spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyOnFailure, Containers: []corev1.Container{shell("main", "echo done")}},
		},
		{
			name: "no-such-command", what: "in CreateContainerConfigError", wanted: waiting("CreateContainerConfigError"),
			spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: agnhost, Command: []string{"/bin/bash"}}}},
		},
		{
			name: "no-such-key", what: "in CreateContainerConfigError", wanted: waiting("CreateContainerConfigError"),
			spec: corev1.PodSpec{Containers: []corev1.Container{{
				Name: "main", Image: agnhost,
				Env: []corev1.EnvVar{{Name: "X", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
					LocalObjectReference: corev1.LocalObjectReference{Name: "missing"}, Key: "x",
				}}}},
			}}},
		},
		{
			name: "no-such-secret", what: "in ContainerCreating", wanted: waiting("ContainerCreating"),
			spec: corev1.PodSpec{
				Containers: []corev1.Container{server()},
				Volumes:    []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "missing"}}}},
			},
		},
		{
			name: "init-fails", what: "waiting behind a failed init container",
			spec: corev1.PodSpec{InitContainers: []corev1.Container{shell("first", "exit 1")}, Containers: []corev1.Container{server()}},
			wanted: func(s corev1.PodStatus) bool {
				return waiting("PodInitializing")(s) && s.InitContainerStatuses[0].RestartCount > 0 && s.Phase == corev1.PodPending
			},
		},
		{
			name: "liveness", what: "restarted by its liveness probe",
			spec: corev1.PodSpec{TerminationGracePeriodSeconds: ptr[int64](0), Containers: []corev1.Container{{
				Name: "main", Image: agnhost, Args: []string{"pause"},
				LivenessProbe: &corev1.Probe{PeriodSeconds: 1, FailureThreshold: 1, ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(1)}}},
			}}},
			wanted: func(s corev1.PodStatus) bool {
				return len(s.ContainerStatuses) > 0 && s.ContainerStatuses[0].RestartCount > 0
			},
		},
	}
	for _, c := range cases {
		n.run(c.name, c.spec)
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			m := *n
			m.t = t
			m.await(c.name, c.what, c.wanted)
		})
	}
}

func TestInitContainersRunInOrder(t *testing.T) {
	n := newNode(t)
	n.cniReady()
	n.run("ordered", corev1.PodSpec{
		InitContainers: []corev1.Container{shell("one", "true"), shell("two", "true")},
		Containers:     []corev1.Container{server()},
	})
	status := n.await("ordered", "ready", isReady)
	var ends []time.Time
	for _, s := range status.InitContainerStatuses {
		if s.State.Terminated == nil || s.State.Terminated.Reason != "Completed" || !s.Ready {
			t.Fatalf("init container %s is %+v", s.Name, s.State)
		}
		ends = append(ends, s.State.Terminated.FinishedAt.Time)
	}
	if len(ends) != 2 || ends[1].Before(ends[0]) {
		t.Errorf("init containers ended at %v", ends)
	}
}

func TestVolumes(t *testing.T) {
	n := newNode(t,
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "pki", Namespace: "default"}, Data: map[string][]byte{"ca.crt": []byte("CA"), "ca.key": []byte("KEY")}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "conf", Namespace: "default"}, Data: map[string]string{"a": "A", "b": "B"}},
	)
	n.cniReady()
	must(t, os.MkdirAll(filepath.Join(n.dir, "opt/data"), 0o755))
	must(t, os.WriteFile(filepath.Join(n.dir, "opt/data/x"), []byte("X"), 0o600))
	projected := &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
		{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "pki"}, Items: []corev1.KeyToPath{{Key: "ca.crt", Path: "etcd/ca.crt"}}}},
		{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Audience: "system:konnectivity-server", Path: "token"}},
		{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{Path: "labels", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels"}}}}},
	}}
	hostType := corev1.HostPathDirectory
	memory := corev1.Volume{Name: "memory", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}}
	volumes := []corev1.Volume{
		{Name: "projected", VolumeSource: corev1.VolumeSource{Projected: projected}},
		{Name: "conf", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "conf"}}}},
		{Name: "optional", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "missing", Optional: ptr(true)}}},
		{Name: "host", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/opt/data", Type: &hostType}}},
		memory,
	}
	main := server()
	main.VolumeMounts = []corev1.VolumeMount{
		{Name: "projected", MountPath: "/p", ReadOnly: true},
		{Name: "memory", MountPath: "/p/inner"}, // inside of a read-only one
		{Name: "conf", MountPath: "/etc/only-b", SubPath: "b"},
		{Name: "optional", MountPath: "/optional"},
		{Name: "host", MountPath: "/host"},
	}
	second := corev1.Container{
		Name: "second", Image: agnhost, Args: []string{"pause"},
		VolumeMounts: []corev1.VolumeMount{{Name: "memory", MountPath: "/shared"}},
	}
	n.run("files", corev1.PodSpec{Containers: []corev1.Container{main, second}, Volumes: volumes})
	n.await("files", "ready", isReady)
	cases := []struct{ command, want string }{
		{"cat /p/etcd/ca.crt", "CA"},
		{"cat /p/token", "token-for-[system:konnectivity-server]"},
		{"cat /p/labels", `app="files"`},
		{"cat /etc/only-b", "B"},
		{"ls /optional", ""},
		{"cat /host/x", "X"},
		{"ls /p", "etcd\ninner\nlabels\ntoken"},
	}
	for _, c := range cases {
		out, code := n.exec("files", "main", nil, strings.Fields(c.command)...)
		if got := strings.TrimSpace(out); got != c.want || code != 0 {
			t.Errorf("%s: %q, exit code %d, want %q", c.command, got, code, c.want)
		}
	}
	mounts, _ := n.exec("files", "second", nil, "cat", "/proc/mounts")
	if !strings.Contains(mounts, "tmpfs /shared tmpfs") {
		t.Errorf("memory-backed emptyDir is no tmpfs:\n%s", mounts)
	}
}

func TestEnvironment(t *testing.T) {
	n := newNode(t,
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes", Namespace: "default"}, Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1", Ports: []corev1.ServicePort{{Name: "https", Port: 443, Protocol: corev1.ProtocolTCP}}}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "conf", Namespace: "default"}, Data: map[string]string{"a": "A"}},
	)
	n.cniReady()
	main := server()
	main.EnvFrom = []corev1.EnvFromSource{{Prefix: "C_", ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "conf"}}}}
	main.Env = []corev1.EnvVar{
		{Name: "PLAIN", Value: "one"},
		{Name: "EXPANDED", Value: "$(PLAIN)-$(UNKNOWN)-$$(PLAIN)"},
		{Name: "NODE", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}},
		{Name: "IP", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIP"}}},
		{Name: "APP", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels['app']"}}},
		{Name: "OPTIONAL", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "none"}, Key: "x", Optional: ptr(true)}}},
	}
	n.run("env", corev1.PodSpec{Containers: []corev1.Container{main}})
	n.await("env", "ready", isReady)
	out, _ := n.exec("env", "main", nil, "env")
	got := map[string]string{}
	for line := range strings.Lines(out) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		got[name] = value
	}
	want := map[string]string{
		"PLAIN": "one", "EXPANDED": "one-$(UNKNOWN)-$(PLAIN)", "NODE": nodeName, "IP": "10.244.7.2", "APP": "env", "C_a": "A",
		"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443", "KUBERNETES_PORT_443_TCP": "tcp://10.96.0.1:443", "HOSTNAME": "env",
	}
	for name, value := range want {
		if got[name] != value {
			t.Errorf("%s is %q, want %q", name, got[name], value)
		}
	}
	if _, set := got["OPTIONAL"]; set {
		t.Error("an optional reference to nothing set its variable")
	}
	hosts, _ := n.exec("env", "main", nil, "cat", "/etc/hosts")
	if !strings.Contains(hosts, "192.168.0.5\tharbor.lab") || !strings.Contains(hosts, "10.244.7.2\tenv") {
		t.Errorf("/etc/hosts is\n%s", hosts)
	}
}

func TestGracefulDeletion(t *testing.T) {
	n := newNode(t)
	n.cniReady()
	n.run("leaving", corev1.PodSpec{Containers: []corev1.Container{server()}})
	n.await("leaving", "ready", isReady)
	pods := n.client.CoreV1().Pods("default")
	pod, err := pods.Get(t.Context(), "leaving", metav1.GetOptions{})
	must(t, err)
	pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = ptr(metav1.Now()), ptr[int64](30)
	_, err = pods.Update(t.Context(), pod, metav1.UpdateOptions{})
	must(t, err)
	began := time.Now()
	for {
		if _, err := pods.Get(t.Context(), "leaving", metav1.GetOptions{}); apierrors.IsNotFound(err) {
			break
		}
		if time.Since(began) > 10*time.Second {
			t.Fatal("pod is still there 10 s after a graceful deletion")
		}
		time.Sleep(20 * time.Millisecond)
	}
	if left, err := os.ReadDir(filepath.Join(n.dir, "var/lib/kubelet/pods")); err != nil || len(left) != 0 {
		t.Errorf("directories left: %v, %v", left, err)
	}
}

func TestOrphansAreRemoved(t *testing.T) {
	dir := t.TempDir()
	orphan := filepath.Join(dir, "var/lib/kubelet/pods/uid-old/volumes")
	must(t, os.MkdirAll(orphan, 0o755))
	n := newNodeIn(t, dir)
	n.cniReady()
	n.run("new", corev1.PodSpec{Containers: []corev1.Container{server()}})
	n.await("new", "ready", isReady)
	entries, err := os.ReadDir(filepath.Join(dir, "var/lib/kubelet/pods"))
	must(t, err)
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	if diff := cmp.Diff([]string{"uid-new"}, names); diff != "" {
		t.Errorf("pod directories (-want +got):\n%s", diff)
	}
}
