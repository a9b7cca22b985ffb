package envoy

import "time"

// Rejection is a NACK: the proxy refused a version and said why.
type Rejection struct {
	Version string    `json:"version"`
	Type    string    `json:"type"` // URL of the resource type that it refused
	Reason  string    `json:"reason"`
	At      time.Time `json:"at"`
}

// Status is what is known of one proxy.
type Status struct {
	ID ID `json:"id"`

	// Connected tells that the proxy has a stream open now.
	Connected bool `json:"connected"`

	// Wanted is the tenant as it shall be served, and Version the version that
	// was given to it; empty until it has one.
	Wanted  Tenant `json:"wanted"`
	Version string `json:"version,omitempty"`

	// Applied tells that the proxy accepted every part of Version.
	Applied bool `json:"applied"`
	// Acked is the version of which every part is accepted; empty while parts differ.
	Acked string `json:"acked,omitempty"`

	// Rejected is set from a NACK of Wanted until Wanted changes or is accepted
	// on a later try. RolledBack tells that the last good configuration went
	// out in its place.
	Rejected   *Rejection `json:"rejected,omitempty"`
	RolledBack bool       `json:"rolledBack,omitempty"`

	// Refused says why Wanted cannot be rendered; what was served before stays.
	Refused string `json:"refused,omitempty"`

	// ReportedAt is when this was said. While a proxy is connected it is said
	// again every ReportInterval.
	ReportedAt time.Time `json:"reportedAt"`
}

// ReportInterval is how often the status of a connected proxy is repeated. A
// reader who finds a report three times older has found a server that is gone.
const ReportInterval = 30 * time.Second

// Fresh tells whether the report is young enough to be believed.
func (s Status) Fresh(now time.Time) bool { return now.Sub(s.ReportedAt) < 3*ReportInterval }

// same tells whether two statuses differ in nothing but the time of the report.
func (s Status) same(o Status) bool {
	rejected := (s.Rejected == nil) == (o.Rejected == nil) && (s.Rejected == nil || *s.Rejected == *o.Rejected)
	return rejected && s.Connected == o.Connected && s.Version == o.Version && s.Applied == o.Applied &&
		s.Acked == o.Acked && s.RolledBack == o.RolledBack && s.Refused == o.Refused
}
