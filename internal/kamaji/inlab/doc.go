// Package inlab holds the tests of internal/kamaji that need the lab: real API
// servers, the stand-in for Kamaji, load balancers and pods. They take a minute
// or two and need what the lab needs; the tests beside the code do not.
package inlab
