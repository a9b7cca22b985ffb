// Package schema knows the parameters of the Proxmox VE calls that the
// simulator answers, and checks requests against them with PVE's own texts.
//
// The facts are in schema.json, made by the reduce command from a dump of the
// API of PVE 9.2: names, types, bounds, enumerations, permission expressions;
// no descriptions. Load reads them once; a Call's Validate turns the raw
// parameters of a request into Values or into the map of errors that PVE puts
// beside "Parameter verification failed.".
//
// It does not know what a call does, nor who may call it.
package schema
