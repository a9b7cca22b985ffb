// Package scenario proves what Aether promises: named scenarios that run in one
// lab, with the real product and nothing of it replaced.
//
// A Scenario is one file. Those of the origin's problems have two halves that
// differ in input only: the naive half does with raw clients and the files in
// testdata what was done by hand, and fails in the lab as it did in life; the
// other half gives the same task to Aether, which does it or refuses with the
// reason. No fault is injected in either.
//
// The scenarios run as tests of this package, in the order of All:
//
//	make scenarios LIST=1            what there is
//	make scenarios RUN='stale|vmid'  some of it
//	make scenarios                   all of it
//
// They share one lab, which is started with the parts the chosen scenarios
// need, and each cleans up after itself.
package scenario
