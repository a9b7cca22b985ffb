// Package media reads and makes what is in a VM's CD-ROM drives: uploaded ISO
// 9660 images, and the cloud-init drive that PVE generates from a VM's
// configuration.
package media
