package kamaji

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"aether.internal/aether/lab/kamaji/v1alpha1"
)

const (
	portAPIServer    = "kube-apiserver"
	portKonnectivity = "konnectivity-server"
)

// ensureService makes the Service and learns the address on the management
// side. Without one the pass ends here, before the first status.
func (p *pass) ensureService(ctx context.Context) (bool, error) {
	wrote, err := p.writeService(ctx, func(service *corev1.Service) {
		p.fillService(service)
		p.setServicePort(service, portAPIServer, p.port())
	})
	if err != nil {
		return false, err
	}
	p.host, err = p.managementAddress()
	return wrote, err
}

func (p *pass) writeService(ctx context.Context, change func(*corev1.Service)) (bool, error) {
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: p.tcp.Namespace, Name: p.tcp.Name}}
	exists, err := p.fetch(ctx, service)
	if err != nil {
		return false, fmt.Errorf("read service: %w", err)
	}
	before := service.DeepCopy()
	change(service)
	if err := p.own(service, "service"); err != nil {
		return false, err
	}
	p.service = service
	switch {
	case !exists:
		err = p.api.Create(ctx, service)
	case equality.Semantic.DeepEqual(before, service):
		return false, nil
	default:
		err = p.api.Update(ctx, service)
	}
	if err != nil {
		return false, fmt.Errorf("write service: %w", err)
	}
	return true, nil
}

func (p *pass) fillService(service *corev1.Service) {
	wanted := p.spec().ControlPlane.Service
	for key, value := range wanted.AdditionalMetadata.Labels {
		metav1.SetMetaDataLabel(&service.ObjectMeta, key, value)
	}
	for key, value := range wanted.AdditionalMetadata.Annotations {
		metav1.SetMetaDataAnnotation(&service.ObjectMeta, key, value)
	}
	service.Spec.Type = corev1.ServiceType(wanted.ServiceType)
	service.Spec.Selector = map[string]string{labelName: p.tcp.Name}
	if service.Spec.Type == corev1.ServiceTypeLoadBalancer {
		service.Spec.LoadBalancerSourceRanges = p.spec().NetworkProfile.LoadBalancerSourceRanges
		if class := p.spec().NetworkProfile.LoadBalancerClass; class != nil {
			service.Spec.LoadBalancerClass = class
		}
	}
}

// setServicePort sets one port and leaves the others alone: the tunnel's port
// is another step's.
func (p *pass) setServicePort(service *corev1.Service, name string, number int32) {
	i := slices.IndexFunc(service.Spec.Ports, func(port corev1.ServicePort) bool { return port.Name == name })
	if i < 0 {
		service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{Name: name})
		i = len(service.Spec.Ports) - 1
	}
	port := &service.Spec.Ports[i]
	port.Protocol, port.Port, port.TargetPort = corev1.ProtocolTCP, number, intstr.FromInt32(number)
	if service.Spec.Type == corev1.ServiceTypeNodePort {
		port.NodePort = number
	}
}

// managementAddress is the host of the endpoint that was published once, even
// when the spec names another by now.
func (p *pass) managementAddress() (string, error) {
	if host, _, err := net.SplitHostPort(p.tcp.Status.ControlPlaneEndpoint); err == nil {
		return host, nil
	}
	if address := p.spec().NetworkProfile.Address; address != "" {
		return address, nil
	}
	switch p.service.Spec.Type {
	case corev1.ServiceTypeClusterIP:
		return p.service.Spec.ClusterIP, nil
	case corev1.ServiceTypeLoadBalancer:
		for _, ingress := range p.service.Status.LoadBalancer.Ingress {
			if ingress.IP != "" {
				return ingress.IP, nil
			}
		}
		return "", fmt.Errorf("service %s: load balancer has no address yet: %w", p.service.Name, errWaiting)
	default:
		return "", fmt.Errorf("service %s: missing valid IP: %w", p.service.Name, errWaiting)
	}
}

func (p *pass) ensureFirstStatus(ctx context.Context) (bool, error) {
	return p.setStatus(ctx, func(s *v1alpha1.TenantControlPlaneStatus) {
		s.ControlPlaneEndpoint = net.JoinHostPort(p.host, strconv.Itoa(int(p.port())))
		if s.Kubernetes.Version.Status == "" {
			s.Kubernetes.Version.Status = v1alpha1.VersionProvisioning
		}
		s.Kubernetes.Service = v1alpha1.ServiceStatus{
			ServiceStatus: *p.service.Status.DeepCopy(),
			Name:          p.service.Name, Namespace: p.service.Namespace, Port: p.port(),
		}
	})
}
