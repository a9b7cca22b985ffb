package kubelet

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"aether.internal/aether/lab/registry"
)

// environment is an ordered set of variables.
type environment struct {
	names  []string
	values map[string]string
}

func newEnvironment() environment { return environment{values: map[string]string{}} }

func (e *environment) set(name, value string) {
	if _, known := e.values[name]; !known {
		e.names = append(e.names, name)
	}
	e.values[name] = value
}

func (e *environment) list() []string {
	list := make([]string, 0, len(e.names))
	for _, name := range e.names {
		list = append(list, name+"="+e.values[name])
	}
	return list
}

// expand replaces $(NAME) by the variable's value. Unknown names stay as they
// are, and $$ is a dollar sign.
func (e *environment) expand(text string) string {
	var out strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] != '$' || i+1 == len(text) {
			out.WriteByte(text[i])
			continue
		}
		switch text[i+1] {
		case '$':
			out.WriteByte('$')
			i++
		case '(':
			end := strings.IndexByte(text[i:], ')')
			if end < 0 {
				out.WriteByte('$')
				continue
			}
			if value, known := e.values[text[i+2:i+end]]; known {
				out.WriteString(value)
			} else {
				out.WriteString(text[i : i+end+1])
			}
			i += end
		default:
			out.WriteByte('$')
		}
	}
	return out.String()
}

// environment builds the variables of a container: the image's, the services',
// then the spec's, later ones winning.
func (w *worker) environment(ctx context.Context, pod *corev1.Pod, u *unit, image *registry.Image) (environment, error) {
	env := newEnvironment()
	for _, entry := range image.Env {
		name, value, _ := strings.Cut(entry, "=")
		env.set(name, value)
	}
	env.set("HOSTNAME", w.hostname(pod))
	if err := w.addServices(&env, pod); err != nil {
		return env, err
	}
	for i := range u.spec.EnvFrom {
		if err := w.addFrom(ctx, &env, pod, &u.spec.EnvFrom[i]); err != nil {
			return env, err
		}
	}
	for i := range u.spec.Env {
		variable := &u.spec.Env[i]
		if variable.ValueFrom == nil {
			env.set(variable.Name, env.expand(variable.Value))
			continue
		}
		value, found, err := w.valueFrom(ctx, pod, u, variable.ValueFrom)
		if err != nil {
			return env, fmt.Errorf("env %s: %w", variable.Name, err)
		}
		if found {
			env.set(variable.Name, value)
		}
	}
	return env, nil
}

// addServices adds the variables of the Services that existed when the
// container started.
func (w *worker) addServices(env *environment, pod *corev1.Pod) error {
	services, err := w.k.services.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("list services: %w", err)
	}
	slices.SortFunc(services, func(a, b *corev1.Service) int { return strings.Compare(a.Name, b.Name) })
	links := pod.Spec.EnableServiceLinks == nil || *pod.Spec.EnableServiceLinks
	for _, service := range services {
		master := service.Namespace == metav1.NamespaceDefault && service.Name == "kubernetes"
		if service.Spec.ClusterIP == "" || service.Spec.ClusterIP == corev1.ClusterIPNone {
			continue
		}
		if master || links && service.Namespace == pod.Namespace {
			addService(env, service)
		}
	}
	if w.k.cfg.APIServer == "" {
		return nil
	}
	parsed, err := url.Parse(w.k.cfg.APIServer)
	if err != nil {
		return fmt.Errorf("address of the API server: %w", err)
	}
	env.set("KUBERNETES_SERVICE_HOST", parsed.Hostname())
	env.set("KUBERNETES_SERVICE_PORT", parsed.Port())
	env.set("KUBERNETES_SERVICE_PORT_HTTPS", parsed.Port())
	return nil
}

func addService(env *environment, service *corev1.Service) {
	prefix := strings.ToUpper(strings.ReplaceAll(service.Name, "-", "_"))
	ip := service.Spec.ClusterIP
	env.set(prefix+"_SERVICE_HOST", ip)
	for i := range service.Spec.Ports {
		port := &service.Spec.Ports[i]
		number := strconv.Itoa(int(port.Port))
		protocol := string(port.Protocol)
		address := strings.ToLower(protocol) + "://" + ip + ":" + number
		if i == 0 {
			env.set(prefix+"_SERVICE_PORT", number)
			env.set(prefix+"_PORT", address)
		}
		if port.Name != "" {
			env.set(prefix+"_SERVICE_PORT_"+strings.ToUpper(strings.ReplaceAll(port.Name, "-", "_")), number)
		}
		long := prefix + "_PORT_" + number + "_" + strings.ToUpper(protocol)
		env.set(long, address)
		env.set(long+"_PROTO", strings.ToLower(protocol))
		env.set(long+"_PORT", number)
		env.set(long+"_ADDR", ip)
	}
}

func (w *worker) addFrom(ctx context.Context, env *environment, pod *corev1.Pod, source *corev1.EnvFromSource) error {
	data := map[string]string{}
	switch {
	case source.ConfigMapRef != nil:
		found, err := w.configMap(ctx, pod.Namespace, source.ConfigMapRef.Name, isTrue(source.ConfigMapRef.Optional))
		if err != nil {
			return err
		}
		data = found.Data
	case source.SecretRef != nil:
		found, err := w.secret(ctx, pod.Namespace, source.SecretRef.Name, isTrue(source.SecretRef.Optional))
		if err != nil {
			return err
		}
		for key, value := range found.Data {
			data[key] = string(value)
		}
	}
	for _, key := range sortedKeys(data) {
		env.set(source.Prefix+key, data[key])
	}
	return nil
}

func (w *worker) valueFrom(ctx context.Context, pod *corev1.Pod, u *unit, source *corev1.EnvVarSource) (string, bool, error) {
	switch {
	case source.FieldRef != nil:
		value, err := w.field(pod, source.FieldRef.FieldPath)
		return value, true, err
	case source.ResourceFieldRef != nil:
		value, err := w.resourceField(pod, u.spec.Name, source.ResourceFieldRef)
		return value, true, err
	case source.ConfigMapKeyRef != nil:
		ref := source.ConfigMapKeyRef
		found, err := w.configMap(ctx, pod.Namespace, ref.Name, isTrue(ref.Optional))
		if err != nil {
			return "", false, err
		}
		value, ok := found.Data[ref.Key]
		if !ok && !isTrue(ref.Optional) {
			return "", false, fmt.Errorf("couldn't find key %s in ConfigMap %s/%s", ref.Key, pod.Namespace, ref.Name)
		}
		return value, ok, nil
	case source.SecretKeyRef != nil:
		ref := source.SecretKeyRef
		found, err := w.secret(ctx, pod.Namespace, ref.Name, isTrue(ref.Optional))
		if err != nil {
			return "", false, err
		}
		value, ok := found.Data[ref.Key]
		if !ok && !isTrue(ref.Optional) {
			return "", false, fmt.Errorf("couldn't find key %s in Secret %s/%s", ref.Key, pod.Namespace, ref.Name)
		}
		return string(value), ok, nil
	default:
		return "", false, errors.New("valueFrom names no source that this kubelet knows: use fieldRef, resourceFieldRef, configMapKeyRef or secretKeyRef")
	}
}

// configMap fetches a ConfigMap; an optional one that is missing is empty.
func (w *worker) configMap(ctx context.Context, namespace, name string, optional bool) (*corev1.ConfigMap, error) {
	found, err := w.k.cfg.Client.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) && optional {
		return &corev1.ConfigMap{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("configmap %s/%s: %w", namespace, name, err)
	}
	return found, nil
}

// secret fetches a Secret; an optional one that is missing is empty.
func (w *worker) secret(ctx context.Context, namespace, name string, optional bool) (*corev1.Secret, error) {
	found, err := w.k.cfg.Client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) && optional {
		return &corev1.Secret{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("secret %s/%s: %w", namespace, name, err)
	}
	return found, nil
}

func isTrue(b *bool) bool { return b != nil && *b }

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
