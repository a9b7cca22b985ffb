package kamaji

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"aether.internal/aether/lab/kamaji/v1alpha1"
)

const (
	mutatePath   = "/mutate-kamaji-clastix-io-v1alpha1-tenantcontrolplane"
	validatePath = "/validate-kamaji-clastix-io-v1alpha1-tenantcontrolplane"

	mutateHook   = "mtenantcontrolplane.kb.io"
	validateHook = "vtenantcontrolplane.kb.io"
	hooksName    = "kamaji"

	hookTimeout       = int32(10)
	hookHeaderTimeout = 10 * time.Second
)

// makeServingCertificate makes the webhooks' authority and certificate. They
// live as long as the Kamaji, so that a restart keeps the registration true.
func (k *Kamaji) makeServingCertificate() error {
	host, _, err := net.SplitHostPort(k.cfg.WebhookAddress)
	if err != nil {
		return fmt.Errorf("address %q: give host:port: %w", k.cfg.WebhookAddress, err)
	}
	if k.hooksCA, err = newCA("kamaji-webhooks", k.cfg.Started); err != nil {
		return err
	}
	l := k.kubeadmLeaf(pkix.Name{CommonName: "kamaji-webhook-service"}, x509.ExtKeyUsageServerAuth)
	l.dnsNames, l.ips = splitSANs([]string{host})
	k.serving, err = k.hooksCA.issue(l)
	return err
}

// serveWebhooks registers and serves the hooks, and returns the function that
// ends serving. The registration stays: while Kamaji is down, its hooks refuse.
func (k *Kamaji) serveWebhooks(ctx context.Context) (func(), error) {
	handler, err := k.webhookHandler()
	if err != nil {
		return nil, fmt.Errorf("webhooks: %w", err)
	}
	pair, err := tls.X509KeyPair(k.serving.certPEM, k.serving.keyPEM)
	if err != nil {
		return nil, fmt.Errorf("webhooks: %w", err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", k.cfg.WebhookAddress)
	if err != nil {
		return nil, fmt.Errorf("webhooks: %w", err)
	}
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: hookHeaderTimeout,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12},
	}
	go func() {
		if err := server.ServeTLS(listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
			k.cfg.Log.Error("kamaji webhooks stopped", "error", err)
		}
	}()
	stop := func() {
		if err := server.Close(); err != nil {
			k.cfg.Log.Debug("close kamaji webhooks", "error", err)
		}
	}
	if err := k.registerWebhooks(ctx); err != nil {
		stop()
		return nil, err
	}
	return stop, nil
}

func (k *Kamaji) webhookHandler() (http.Handler, error) {
	mux := http.NewServeMux()
	decoder := admission.NewDecoder(k.scheme)
	for path, handler := range map[string]admission.Handler{
		mutatePath:   &mutator{decoder: decoder, dataStore: k.cfg.DataStore},
		validatePath: &validator{decoder: decoder, api: k.api},
	} {
		served, err := admission.StandaloneWebhook(&admission.Webhook{Handler: handler}, admission.StandaloneOptions{Logger: k.logger()})
		if err != nil {
			return nil, err
		}
		mux.Handle(path, served)
	}
	return mux, nil
}

func (k *Kamaji) registerWebhooks(ctx context.Context) error {
	mutating := &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: hooksName}}
	_, err := controllerutil.CreateOrUpdate(ctx, k.api, mutating, func() error {
		mutating.Webhooks = []admissionregistrationv1.MutatingWebhook{{
			Name: mutateHook, ClientConfig: k.hookClient(mutatePath), Rules: hookRules(),
			FailurePolicy: ptr.To(admissionregistrationv1.Fail), SideEffects: ptr.To(admissionregistrationv1.SideEffectClassNone),
			AdmissionReviewVersions: []string{"v1"}, TimeoutSeconds: ptr.To(hookTimeout),
		}}
		return nil
	})
	if err != nil {
		return fmt.Errorf("register %s: %w", mutateHook, err)
	}
	validating := &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: hooksName}}
	_, err = controllerutil.CreateOrUpdate(ctx, k.api, validating, func() error {
		validating.Webhooks = []admissionregistrationv1.ValidatingWebhook{{
			Name: validateHook, ClientConfig: k.hookClient(validatePath), Rules: hookRules(),
			FailurePolicy: ptr.To(admissionregistrationv1.Fail), SideEffects: ptr.To(admissionregistrationv1.SideEffectClassNone),
			AdmissionReviewVersions: []string{"v1"}, TimeoutSeconds: ptr.To(hookTimeout),
		}}
		return nil
	})
	if err != nil {
		return fmt.Errorf("register %s: %w", validateHook, err)
	}
	return nil
}

func (k *Kamaji) hookClient(path string) admissionregistrationv1.WebhookClientConfig {
	return admissionregistrationv1.WebhookClientConfig{URL: ptr.To("https://" + k.cfg.WebhookAddress + path), CABundle: k.hooksCA.certPEM}
}

func hookRules() []admissionregistrationv1.RuleWithOperations {
	return []admissionregistrationv1.RuleWithOperations{{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update},
		Rule: admissionregistrationv1.Rule{
			APIGroups: []string{v1alpha1.GroupName}, APIVersions: []string{v1alpha1.GroupVersion().Version},
			Resources: []string{"tenantcontrolplanes"}, Scope: ptr.To(admissionregistrationv1.NamespacedScope),
		},
	}}
}
