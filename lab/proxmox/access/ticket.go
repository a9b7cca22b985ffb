package access

import (
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"maps"
	"time"
)

type ticket struct {
	user   string
	csrf   string
	issued time.Time
}

// Ticket is the answer to a successful login.
type Ticket struct {
	User  string
	Value string
	CSRF  string
}

// Login checks a password, or a ticket in its place, and issues a ticket.
func (s *Store) Login(user, password string, now time.Time) (Ticket, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u, ok := s.users[user]
	if !ok || u.Disabled || password == "" {
		return Ticket{}, false
	}
	old, renew := s.tickets[password]
	valid := renew && old.user == user && now.Sub(old.issued) < s.ticketLife
	valid = valid || (u.Password != "" && subtle.ConstantTimeCompare([]byte(u.Password), []byte(password)) == 1)
	if !valid {
		return Ticket{}, false
	}
	t := Ticket{
		User:  user,
		Value: fmt.Sprintf("PVE:%s:%08X::%s", user, now.Unix(), base64.StdEncoding.EncodeToString([]byte(randomText()))),
		CSRF:  fmt.Sprintf("%08X:%s", now.Unix(), base64.RawStdEncoding.EncodeToString([]byte(randomText()))),
	}
	maps.DeleteFunc(s.tickets, func(_ string, old ticket) bool { return now.Sub(old.issued) > s.ticketLife })
	s.tickets[t.Value] = ticket{user: user, csrf: t.CSRF, issued: now}
	s.secrets = append(s.secrets, t.Value, t.CSRF)
	return t, true
}

// ByTicket returns whose ticket it is.
func (s *Store) ByTicket(value string, now time.Time) (Identity, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.tickets[value]
	if !ok || now.Sub(t.issued) >= s.ticketLife || s.users[t.user].Disabled {
		return Identity{}, false
	}
	return Identity{User: t.user}, true
}

// CSRFMatches tells whether the token against request forgery was issued to
// the user and is still good.
func (s *Store) CSRFMatches(user, csrf string, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tickets {
		if t.user == user && t.csrf == csrf && now.Sub(t.issued) < s.ticketLife {
			return true
		}
	}
	return false
}
