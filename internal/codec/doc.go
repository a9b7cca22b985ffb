// Package codec encrypts Temporal payloads with AES-256-GCM, so that the
// server stores nothing in clear, and serves the decoding side to the web UI.
// Keys are named: an old history is read with the key it was written with.
package codec
