// Package domain holds Aether's pure types and rules: names and identities,
// the tenant document with its defaults, and how problems are told. It makes
// no calls and reads no clock, so workflows may use all of it.
package domain
