package access

import (
	"crypto/rand"
	"crypto/subtle"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
)

// Root is the user that passes all checks.
const Root = "root@pam"

// User is an account.
type User struct {
	ID       string // name@realm
	Password string // empty: cannot log in
	Disabled bool
	Groups   []string
}

// Token is an API token of a user.
type Token struct {
	ID     string // name@realm!token
	Secret string // a UUID; made up when empty
	// PrivSep limits the token to what its own ACL entries allow, within the
	// rights of its user. Without it the token has the user's rights.
	PrivSep bool
	// Expire is a Unix time; 0 is never.
	Expire int64
}

// ACL gives roles to a user, a token or a group ("@name") on a path and,
// with Propagate, on all below it.
type ACL struct {
	Path      string
	Who       string
	Role      string
	Propagate bool
}

// Identity is who makes a request.
type Identity struct {
	User  string
	Token string // name only
}

// AuthID is the user, with the token if it is one.
func (i Identity) AuthID() string {
	if i.Token == "" {
		return i.User
	}
	return i.User + "!" + i.Token
}

// IsRoot tells whether it is root itself, not one of root's tokens.
func (i Identity) IsRoot() bool { return i.User == Root && i.Token == "" }

// Store holds users, tokens, ACL and tickets.
type Store struct {
	ticketLife time.Duration

	mu      sync.Mutex
	users   map[string]User
	tokens  map[string]Token
	roles   map[string][]string
	acl     []ACL
	tickets map[string]ticket
	secrets []string
	poolOf  func(path string) string
}

// NewStore returns a store that knows root only. Tickets live for that long.
func NewStore(ticketLife time.Duration) *Store {
	return &Store{
		ticketLife: ticketLife, users: map[string]User{Root: {ID: Root}}, tokens: map[string]Token{},
		roles: builtinRoles(), tickets: map[string]ticket{}, poolOf: func(string) string { return "" },
	}
}

// SetPoolOf tells the store how to find the pool of /vms/N or /storage/x,
// whose privileges count on that path too.
func (s *Store) SetPoolOf(poolOf func(path string) string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.poolOf = poolOf
}

// AddUser adds or replaces an account.
func (s *Store) AddUser(u User) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users[u.ID] = u
	if u.Password != "" {
		s.secrets = append(s.secrets, u.Password)
	}
}

// Users returns all accounts, sorted.
func (s *Store) Users() []User {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.users), func(a, b User) int { return strings.Compare(a.ID, b.ID) })
}

// AddToken adds a token and returns it with its secret.
func (s *Store) AddToken(t Token) (Token, error) {
	user, _, ok := strings.Cut(t.ID, "!")
	if !ok {
		return t, fmt.Errorf("token ID: %q has no '!'; give user@realm!name", t.ID)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.users[user]; !known {
		return t, fmt.Errorf("no such user ('%s')", user)
	}
	if _, taken := s.tokens[t.ID]; taken {
		return t, fmt.Errorf("Token already exists.") //nolint:revive,staticcheck // PVE's words
	}
	if t.Secret == "" {
		t.Secret = uuid.NewString()
	}
	s.tokens[t.ID] = t
	s.secrets = append(s.secrets, t.Secret)
	return t, nil
}

// RemoveToken deletes a token and tells whether it was there.
func (s *Store) RemoveToken(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.tokens[id]
	delete(s.tokens, id)
	return ok
}

// Tokens returns the tokens of a user, sorted.
func (s *Store) Tokens(user string) []Token {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []Token
	for _, t := range s.tokens {
		if strings.HasPrefix(t.ID, user+"!") {
			list = append(list, t)
		}
	}
	slices.SortFunc(list, func(a, b Token) int { return strings.Compare(a.ID, b.ID) })
	return list
}

// Grant adds an ACL entry.
func (s *Store) Grant(entry ACL) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.roles[entry.Role]; !ok {
		return fmt.Errorf("role '%s' does not exist", entry.Role)
	}
	s.revoke(entry)
	s.acl = append(s.acl, entry)
	return nil
}

// Revoke removes an ACL entry.
func (s *Store) Revoke(entry ACL) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.revoke(entry)
}

func (s *Store) revoke(entry ACL) {
	s.acl = slices.DeleteFunc(s.acl, func(a ACL) bool {
		return a.Path == entry.Path && a.Who == entry.Who && a.Role == entry.Role
	})
}

// List returns all ACL entries.
func (s *Store) List() []ACL {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.acl)
}

// SetRole defines a role of one's own.
func (s *Store) SetRole(name string, privileges []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.roles[name] = privileges
}

// Roles returns all roles with their privileges.
func (s *Store) Roles() map[string][]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.roles)
}

// Secrets returns all secrets that the store holds or ever handed out.
func (s *Store) Secrets() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.secrets)
}

// ByToken returns who a token value "user@realm!name=secret" belongs to.
func (s *Store) ByToken(value string, now time.Time) (Identity, bool) {
	id, secret, _ := strings.Cut(value, "=")
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.tokens[id]
	if !ok || subtle.ConstantTimeCompare([]byte(t.Secret), []byte(secret)) != 1 {
		return Identity{}, false
	}
	user, name, _ := strings.Cut(id, "!")
	if s.users[user].Disabled || (t.Expire > 0 && now.Unix() > t.Expire) {
		return Identity{}, false
	}
	return Identity{User: user, Token: name}, true
}

func randomText() string { return rand.Text() + rand.Text() }
