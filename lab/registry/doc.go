// Package registry is the image side of the lab: the upstream registries that
// the Internet would have (ghcr.io, registry.k8s.io, quay.io, docker.io,
// factory.talos.dev), a Harbor with one proxy-cache project for each of them
// in front, and the puller that a node uses.
//
// The registries speak the OCI distribution protocol over TLS and hold small,
// real images. What such an image runs is not in its layers but in labels of
// its configuration: the program of the lab that stands behind it, and the
// commands it answers to. Everything else (indexes, digests, media types,
// mirrors, fallback, the upstream going away) is as it is on the Internet.
//
// Harbor's management API is not here.
package registry
