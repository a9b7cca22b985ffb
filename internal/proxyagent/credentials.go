package proxyagent

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"time"

	"aether.internal/aether/internal/envoy/wire"
)

const (
	firstPause = time.Second
	lastPause  = 30 * time.Second
	// look is the longest sleep between two looks at the clock, which may be
	// set while the agent sleeps.
	look = time.Minute
)

// errFinal marks what nothing on this machine can mend; its owner sees it in
// the agent's health.
var errFinal = errors.New("the proxy has no certificate and cannot get one; make it anew")

// errNoToken tells that there is nothing to enrol with.
var errNoToken = fmt.Errorf("%w: there is no unused enrolment token", errFinal)

// keeper owns the machine's key and certificate.
type keeper struct {
	config    Config
	state     state
	roots     *x509.CertPool
	authority authority
	health    *health
	log       *slog.Logger
	now       func() time.Time
}

// run gets a certificate, gives it to Envoy and renews it, until the context
// ends.
func (k *keeper) run(ctx context.Context) error {
	pause := firstPause
	for ctx.Err() == nil {
		wait, err := k.step(ctx)
		switch {
		case err == nil:
			pause = firstPause
		case errors.Is(err, errFinal):
			k.health.refuse(err)
			k.log.Error("no more tries to enrol", "error", err)
			wait = look
		default:
			k.log.Warn("credentials are not up to date, will try again", "error", err, "in", pause)
			wait = pause
			pause = min(2*pause, lastPause)
		}
		sleep(ctx, wait)
	}
	return nil
}

// step does the next thing that is due and says when to look again.
func (k *keeper) step(ctx context.Context) (time.Duration, error) {
	now := k.now()
	present, err := k.state.loadIdentity(k.config.ID(), k.roots, now)
	if err != nil {
		// Expired, or of another authority: only a token helps.
		k.log.Warn("the certificate at hand cannot be used", "error", err)
		present = nil
	}
	if present == nil {
		if present, err = k.enrol(ctx); err != nil {
			return 0, err
		}
	}
	if !now.Before(present.renewAt()) {
		renewed, err := k.renew(ctx, present)
		if err != nil {
			// What is there stays good until it expires, and Envoy must have it.
			return 0, errors.Join(err, k.publish(present))
		}
		present = renewed
	}
	if err := k.publish(present); err != nil {
		return 0, err
	}
	return min(present.renewAt().Sub(k.now()), look), nil
}

// enrol turns the token into a certificate. The token is marked as used once
// the certificate is on disk, and deleted.
func (k *keeper) enrol(ctx context.Context) (*identity, error) {
	data, err := os.ReadFile(k.config.TokenFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errNoToken
	}
	if err != nil {
		return nil, fmt.Errorf("enrolment token: %w", err)
	}
	token := strings.TrimSpace(string(data))
	used, err := k.state.wasUsed(token)
	if err != nil {
		return nil, err
	}
	if used {
		k.log.Warn("the enrolment token was used before and is not used again")
		return nil, errors.Join(errNoToken, k.forgetToken())
	}
	key, err := k.state.pendingKey()
	if err != nil {
		return nil, err
	}
	fresh, err := k.obtain(ctx, wire.EnrolPath, token, key, nil)
	if errors.Is(err, ErrRefused) {
		return nil, fmt.Errorf("%w: %w", errFinal, err)
	}
	if err != nil {
		return nil, err
	}
	if err := k.state.markUsed(token); err != nil {
		return nil, err
	}
	k.log.Info("enrolled", "proxy", k.config.ID().String(), "not_after", fresh.notAfter())
	return fresh, nil
}

// renew gets the next certificate, with a new key.
func (k *keeper) renew(ctx context.Context, present *identity) (*identity, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	fresh, err := k.obtain(ctx, wire.RenewPath, "", key, present)
	if err != nil {
		return nil, fmt.Errorf("renew: %w", err)
	}
	k.log.Info("certificate renewed", "not_after", fresh.notAfter())
	return fresh, nil
}

func (k *keeper) obtain(ctx context.Context, path, token string, key []byte, present *identity) (*identity, error) {
	request, err := newRequest(k.config.ID(), key)
	if err != nil {
		return nil, err
	}
	body := wire.EnrolRequest{Token: token, CSR: string(request)}
	var certificate []byte
	if present == nil {
		certificate, err = k.authority.call(ctx, path, body, nil)
	} else {
		certificate, err = k.authority.call(ctx, path, body, &present.pair)
	}
	if err != nil {
		return nil, err
	}
	fresh, err := newIdentity(k.config.ID(), certificate, key, k.roots, k.now())
	if err != nil {
		return nil, fmt.Errorf("call %s: %w", path, err)
	}
	return fresh, k.state.saveIdentity(fresh)
}

// publish gives Envoy its files and removes what enrolment needed.
func (k *keeper) publish(i *identity) error {
	secret, err := renderSecret(i)
	if err != nil {
		return err
	}
	bootstrap, err := renderBootstrap(k.config)
	if err != nil {
		return err
	}
	// Credentials first: Envoy starts when the bootstrap appears.
	if _, err := replaceFile(k.config.secretFile(), secret, 0o640); err != nil {
		return err
	}
	changed, err := replaceFile(k.config.BootstrapFile(), bootstrap, 0o640)
	if err != nil {
		return err
	}
	if changed {
		k.log.Info("bootstrap written", "file", k.config.BootstrapFile())
	}
	k.health.enrolled(i.notAfter())
	return k.forgetToken()
}

func (k *keeper) forgetToken() error {
	errs := []error{removeFile(k.config.TokenFile), removeFile(k.state.path(pendingKeyFile))}
	for _, file := range k.config.Forget {
		errs = append(errs, removeFile(file))
	}
	return errors.Join(errs...)
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
