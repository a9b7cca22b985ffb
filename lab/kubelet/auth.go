package kubelet

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// authenticator decides by the API server's word who may use port 10250:
// client certificates by the cluster's CA, tokens by TokenReview, and every
// request by SubjectAccessReview. There is no anonymous access.
type authenticator struct {
	client kubernetes.Interface
	node   string
	roots  *x509.CertPool

	mu      sync.Mutex
	allowed map[string]time.Time // user and attributes → until when
}

// identity is who asks.
type identity struct {
	name, uid string
	groups    []string
	extra     map[string]authorizationv1.ExtraValue
}

// Positive answers are kept for a while, as a kubelet's webhook does.
const authorizedTTL = time.Minute

var errNoCredentials = errors.New("neither client certificate nor bearer token")

func newAuthenticator(client kubernetes.Interface, node string, ca []byte) (*authenticator, error) {
	roots := x509.NewCertPool()
	if len(ca) > 0 && !roots.AppendCertsFromPEM(ca) {
		return nil, errors.New("client CA: no PEM certificate found")
	}
	return &authenticator{client: client, node: node, roots: roots, allowed: map[string]time.Time{}}, nil
}

func (a *authenticator) authenticate(r *http.Request) (identity, error) {
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		return a.byCertificate(r.TLS.PeerCertificates)
	}
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok {
		return identity{}, errNoCredentials
	}
	review, err := a.client.AuthenticationV1().TokenReviews().Create(r.Context(), &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token},
	}, metav1.CreateOptions{})
	if err != nil {
		return identity{}, fmt.Errorf("review token: %w", err)
	}
	if !review.Status.Authenticated {
		return identity{}, fmt.Errorf("token is not valid: %s", review.Status.Error)
	}
	user := review.Status.User
	extra := map[string]authorizationv1.ExtraValue{}
	for key, values := range user.Extra {
		extra[key] = authorizationv1.ExtraValue(values)
	}
	return identity{name: user.Username, uid: user.UID, groups: user.Groups, extra: extra}, nil
}

func (a *authenticator) byCertificate(chain []*x509.Certificate) (identity, error) {
	intermediates := x509.NewCertPool()
	for _, certificate := range chain[1:] {
		intermediates.AddCert(certificate)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{
		Roots: a.roots, Intermediates: intermediates, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return identity{}, fmt.Errorf("client certificate: %w", err)
	}
	subject := chain[0].Subject
	return identity{name: subject.CommonName, groups: append(subject.Organization, "system:authenticated")}, nil
}

// authorize asks for each subresource until one is allowed.
func (a *authenticator) authorize(ctx context.Context, user identity, verb string, subresources []string) (bool, error) {
	for _, subresource := range subresources {
		allowed, err := a.allows(ctx, user, verb, subresource)
		if err != nil || allowed {
			return allowed, err
		}
	}
	return false, nil
}

func (a *authenticator) allows(ctx context.Context, user identity, verb, subresource string) (bool, error) {
	key := fmt.Sprintf("%q %q %q %s %s", user.name, user.groups, user.extra, verb, subresource)
	a.mu.Lock()
	until := a.allowed[key]
	a.mu.Unlock()
	if time.Now().Before(until) {
		return true, nil
	}
	review, err := a.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: user.name, UID: user.uid, Groups: user.groups, Extra: user.extra,
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb: verb, Version: "v1", Resource: "nodes", Subresource: subresource, Name: a.node,
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return false, fmt.Errorf("review access: %w", err)
	}
	if review.Status.Allowed {
		a.mu.Lock()
		a.allowed[key] = time.Now().Add(authorizedTTL)
		a.mu.Unlock()
	}
	return review.Status.Allowed, nil
}

// attributesOf maps a request to a verb on nodes/<subresource>.
func attributesOf(r *http.Request) (verb string, subresources []string) {
	verbs := map[string]string{
		http.MethodPost: "create", http.MethodGet: "get", http.MethodPut: "update",
		http.MethodPatch: "patch", http.MethodDelete: "delete",
	}
	verb = verbs[r.Method]
	if verb == "" {
		verb = "get"
	}
	path := strings.TrimPrefix(r.URL.Path, "/")
	first, _, _ := strings.Cut(path, "/")
	switch first {
	case "stats", "metrics", "spec":
		return verb, []string{first}
	case "logs":
		return verb, []string{"log"}
	case "pods", "healthz", "configz":
		return verb, []string{first, "proxy"}
	default:
		return verb, []string{"proxy"}
	}
}
