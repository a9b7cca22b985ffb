package task

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// UPID names one task in the cluster.
type UPID struct {
	Node      string
	PID       int
	PStart    int
	StartTime int64
	Type      string
	ID        string
	User      string // user@realm or user@realm!token
}

// String returns PVE's form, which ends in a colon.
func (u UPID) String() string {
	return fmt.Sprintf("UPID:%s:%08X:%08X:%08X:%s:%s:%s:", u.Node, u.PID, u.PStart, u.StartTime, u.Type, u.ID, u.User)
}

// Parse reads a UPID and tells whether it is one.
func Parse(text string) (UPID, bool) {
	ok, err := regexp.MatchString(`^UPID:[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?:[0-9A-Fa-f]{8}:[0-9A-Fa-f]{8,9}:[0-9A-Fa-f]{8}:[^:\s]+:[^:\s]*:[^:\s]+:$`, text)
	if err != nil || !ok {
		return UPID{}, false
	}
	f := strings.Split(text, ":")
	u := UPID{Node: f[1], Type: f[5], ID: f[6], User: f[7]}
	pid, _ := strconv.ParseInt(f[2], 16, 64)
	pstart, _ := strconv.ParseInt(f[3], 16, 64)
	u.StartTime, _ = strconv.ParseInt(f[4], 16, 64)
	u.PID, u.PStart = int(pid), int(pstart)
	return u, true
}

// Owner splits the user into user@realm and the token's name.
func (u UPID) Owner() (user, token string) {
	user, token, _ = strings.Cut(u.User, "!")
	return user, token
}
