// Package activities holds Aether's side effects, one struct per outside
// system. An activity takes references, reads the state first, acts only on
// what is missing, and reads the result back, so that it may be repeated after
// an unknown outcome. Its doc comment says how, and which errors are final.
//
// Secrets are read here and never returned: inputs and results are part of
// histories.
package activities
