package proxyagent

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// announcer tells the tenant's network where the address is, whenever the
// tenant-side link comes up: at take-over the switch must learn the port, and
// neighbours the card.
type announcer struct {
	mac     net.HardwareAddr
	address netip.Addr
	health  *health
	log     *slog.Logger
	// repeat are the pauses between announcements: a single frame may be lost
	// while a switch port starts to forward.
	repeat []time.Duration

	// changes counts what happened to the link; a burst ends when it moves on.
	changes atomic.Int64
}

func defaultRepeat() []time.Duration {
	return []time.Duration{0, 100 * time.Millisecond, 400 * time.Millisecond, 1500 * time.Millisecond, 3 * time.Second}
}

// run follows the link until the context ends, and subscribes again if the
// kernel drops the subscription.
func (a *announcer) run(ctx context.Context) error {
	pause := firstPause
	for ctx.Err() == nil {
		if err := a.follow(ctx); err != nil {
			a.log.Warn("link is not watched, will try again", "error", err, "in", pause)
			sleep(ctx, pause)
			pause = min(2*pause, lastPause)
		} else {
			pause = firstPause
		}
	}
	return nil
}

// follow returns nil when the subscription ended.
func (a *announcer) follow(ctx context.Context) error {
	done := make(chan struct{})
	defer close(done)
	updates := make(chan netlink.LinkUpdate, 16)
	options := netlink.LinkSubscribeOptions{
		ListExisting:  true,
		ErrorCallback: func(err error) { a.log.Debug("link subscription", "error", err) },
	}
	if err := netlink.LinkSubscribeWithOptions(updates, done, options); err != nil {
		return fmt.Errorf("subscribe to links: %w", err)
	}
	var up bool
	for {
		select {
		case <-ctx.Done():
			return nil
		case update, open := <-updates:
			if !open {
				return nil
			}
			if !bytes.Equal(update.Attrs().HardwareAddr, a.mac) {
				continue
			}
			carrier := update.Header.Type == unix.RTM_NEWLINK && update.Flags&unix.IFF_RUNNING != 0
			if carrier == up {
				continue
			}
			up = carrier
			a.health.link(up)
			a.log.Info("tenant-side link", "device", update.Attrs().Name, "up", up)
			if change := a.changes.Add(1); up {
				go a.burst(ctx, change, update.Attrs().Index)
			}
		}
	}
}

// burst announces several times, unless the link goes down meanwhile.
func (a *announcer) burst(ctx context.Context, change int64, index int) {
	for _, pause := range a.repeat {
		sleep(ctx, pause)
		if ctx.Err() != nil || a.changes.Load() != change {
			return
		}
		if err := announce(index, a.mac, a.address); err != nil {
			a.log.Warn("address not announced", "error", err)
			continue
		}
		a.health.announced()
	}
}
