// Package site reads the site file: the one document in which the operator
// states what hardware, addresses, images and versions Aether may use.
//
// [Load] reads a file, [Parse] bytes. Both refuse what they do not know and
// report everything that is wrong at once, each finding as a [Problem] that
// names the field, what was found, what is allowed and what to do.
//
// The package only reads and checks the document itself. Whether the stated
// hosts, bridges and templates exist is asked of Proxmox by the preflight.
package site
