// Package bench measures in the lab how long joins take, and says where the
// time goes: what the lab's own table and limits make it take at least, and
// what the product and the real software add.
//
// All times come from the workflows' histories, whose clock is the Temporal
// server's.
package bench
