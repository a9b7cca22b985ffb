package chaos

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
)

// Point is a moment in a run of a workflow: just after the n-th call of a
// kind, before its answer.
type Point struct {
	// Place is the pattern of the call's place in lab/faults.
	Place string
	// Nth call at the place, from 1.
	Nth int
	// What happens there, for people.
	What string
}

func (p Point) String() string {
	text := p.Place
	if p.Nth > 1 {
		text = fmt.Sprintf("%s#%d", p.Place, p.Nth)
	}
	if p.What != "" {
		text += " (" + p.What + ")"
	}
	return text
}

// call is one changing call that was seen.
type call struct {
	place string // as given to lab/faults
	what  string
}

// points are the first and the last call of each place, in the order of the
// run.
func points(seen []call) []Point {
	type span struct{ first, last, count int }
	spans := map[string]*span{}
	patterns := make([]string, len(seen))
	for i, c := range seen {
		patterns[i] = pattern(c.place)
		if s := spans[patterns[i]]; s != nil {
			s.last = i
		} else {
			spans[patterns[i]] = &span{first: i, last: i}
		}
	}
	var list []Point
	for i, c := range seen {
		s := spans[patterns[i]]
		s.count++
		// Each report of a result ends another activity.
		if i == s.first || i == s.last || strings.HasPrefix(c.place, placeTemporal) {
			list = append(list, Point{Place: patterns[i], Nth: s.count, What: c.what})
		}
	}
	return list
}

// variable matches the parts of a Proxmox path that differ from run to run.
var variable = regexp.MustCompile(`^(\d+|pv\d+-\d+|UPID:.*|.*%2F.*)$`)

// pattern turns a place into a pattern of path.Match that fits the same call in
// another run: names of things become stars.
func pattern(place string) string {
	segments := strings.Split(place, "/")
	if strings.HasPrefix(place, "pve/") {
		for i, s := range segments {
			if variable.MatchString(s) {
				segments[i] = "*"
			}
		}
	}
	return strings.Join(segments, "/")
}

// Sample picks n of the points, the same for the same seed.
func Sample(all []Point, n int, seed uint64) []Point {
	if n >= len(all) {
		return all
	}
	chosen := rand.New(rand.NewPCG(seed, uint64(len(all)))).Perm(len(all))[:n] //nolint:gosec // a choice that can be repeated
	slices.Sort(chosen)
	list := make([]Point, 0, n)
	for _, i := range chosen {
		list = append(list, all[i])
	}
	return list
}
