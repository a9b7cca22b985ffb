package registry

import "slices"

// The program of the lab that holds all the small stand-ins.
const labProgram = "lab"

// Versions that the catalogue is built around.
const (
	KubernetesVersion = "v1.35.4"
	CiliumVersion     = "v1.20.2"
	TalosVersion      = "v1.12.6"
	EnvoyTag          = "v1.37.6-1789133542-cbec91f666af0bf742da986d43832932dbb26b82"
)

// vanillaSchematic is the image factory's schematic without any extension.
const vanillaSchematic = "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba"

// Catalogue lists the images that exist on the lab's Internet. A reference
// that is not in it is unknown, as a mistyped one is in life.
func Catalogue() []Definition {
	return slices.Concat(talosImages(), kubernetesImages(), ciliumImages(), clusterImages(), testImages())
}

func talosImages() []Definition {
	images := []Definition{
		{Ref: "ghcr.io/siderolabs/installer:" + TalosVersion, SizeMiB: 96},
		{Ref: "factory.talos.dev/nocloud-installer/" + vanillaSchematic + ":" + TalosVersion, SizeMiB: 96},
		{Ref: "factory.talos.dev/metal-installer/" + vanillaSchematic + ":" + TalosVersion, SizeMiB: 96},
	}
	for _, version := range []string{"v1.30.2", "v1.33.4", "v1.34.1", "v1.34.4", "v1.35.0", "v1.35.2", KubernetesVersion} {
		images = append(images, Definition{
			Ref: "ghcr.io/siderolabs/kubelet:" + version, Program: "kubelet",
			Commands: []string{"kubelet"}, Entrypoint: []string{"/usr/local/bin/kubelet"}, SizeMiB: 100,
		})
	}
	return images
}

func kubernetesImages() []Definition {
	component := func(name string, size int) Definition {
		return Definition{
			Ref: "registry.k8s.io/" + name + ":" + KubernetesVersion, Program: name,
			Commands: []string{name}, Entrypoint: []string{"/go-runner"}, SizeMiB: size,
		}
	}
	images := []Definition{
		component("kube-apiserver", 28), component("kube-controller-manager", 23), component("kube-scheduler", 17),
	}
	for _, tag := range []string{"v0.34.0", "v0.35.0"} {
		images = append(
			images,
			Definition{
				Ref: "registry.k8s.io/kas-network-proxy/proxy-server:" + tag, Program: "konnectivity-server",
				Commands: []string{"proxy-server"}, Entrypoint: []string{"/proxy-server"}, SizeMiB: 13,
			},
			Definition{
				Ref: "registry.k8s.io/kas-network-proxy/proxy-agent:" + tag, Program: "konnectivity-agent",
				Commands: []string{"proxy-agent"}, Entrypoint: []string{"/proxy-agent"}, SizeMiB: 12,
			},
		)
	}
	return images
}

func ciliumImages() []Definition {
	return []Definition{
		{
			Ref: "quay.io/cilium/cilium:" + CiliumVersion, Program: labProgram, SizeMiB: 230,
			Commands: []string{"cilium-agent", "cilium-dbg", "cilium-sysctlfix", "cilium-mount", "init-container.sh", "install-plugin.sh"},
			Cmd:      []string{"/usr/bin/cilium-dbg"},
		},
		{
			Ref: "quay.io/cilium/operator-generic:" + CiliumVersion, Program: labProgram, SizeMiB: 42,
			Commands: []string{"cilium-operator-generic"}, Cmd: []string{"/usr/bin/cilium-operator-generic"},
		},
		{
			Ref: "quay.io/cilium/cilium-envoy:" + EnvoyTag, Program: labProgram, SizeMiB: 65,
			Commands: []string{"cilium-envoy-starter"}, Cmd: []string{"/usr/bin/cilium-envoy-starter"},
		},
	}
}

func clusterImages() []Definition {
	var images []Definition
	for _, tag := range []string{"3.10", "3.10.1", "3.10.2"} {
		images = append(images, Definition{
			Ref: "registry.k8s.io/pause:" + tag, Program: labProgram,
			Commands: []string{"pause"}, Entrypoint: []string{"/pause"}, SizeMiB: 1,
		})
	}
	for _, tag := range []string{"v1.13.1", "v1.13.2", "v1.14.2"} {
		images = append(images, Definition{
			Ref: "registry.k8s.io/coredns/coredns:" + tag, Program: labProgram,
			Commands: []string{"coredns"}, Entrypoint: []string{"/coredns"}, SizeMiB: 23,
		})
	}
	return images
}

func testImages() []Definition {
	return []Definition{
		{
			Ref: "registry.k8s.io/e2e-test-images/agnhost:2.53", Program: labProgram,
			Commands: []string{"agnhost"}, Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"}, SizeMiB: 52,
		},
		{
			Ref: "docker.io/library/nginx:1.27", Program: labProgram,
			Commands: []string{"nginx"}, Cmd: []string{"nginx", "-g", "daemon off;"}, SizeMiB: 70,
		},
		{
			Ref: "docker.io/library/busybox:1.37", Program: labProgram,
			Commands: []string{"sh"}, Cmd: []string{"sh"}, SizeMiB: 2,
		},
		{
			Ref: "docker.io/library/busybox:latest", Program: labProgram,
			Commands: []string{"sh"}, Cmd: []string{"sh"}, SizeMiB: 2,
		},
	}
}
