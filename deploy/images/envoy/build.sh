#!/usr/bin/env bash
# Makes the proxy template on a Proxmox VE host. See README.md.
set -euo pipefail

: "${VMID:?set VMID to the number of the template, below 1000}"
: "${STORAGE:?set STORAGE to the storage for its disk}"
: "${ENVOY_SHA256:?set ENVOY_SHA256 to the checksum of the Envoy binary that you trust}"
ENVOY_VERSION=${ENVOY_VERSION:-1.37.0}
MGMT_BRIDGE=${MGMT_BRIDGE:-vmbr0}
TENANT_BRIDGE=${TENANT_BRIDGE:-vmbr1}
IMAGE_URL=${IMAGE_URL:-https://cloud.debian.org/images/cloud/bookworm/latest/debian-12-genericcloud-amd64.qcow2}
SUMS_URL=${SUMS_URL:-https://cloud.debian.org/images/cloud/bookworm/latest/SHA512SUMS}
ENVOY_URL=${ENVOY_URL:-https://github.com/envoyproxy/envoy/releases/download/v${ENVOY_VERSION}/envoy-${ENVOY_VERSION}-linux-x86_64}

here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() { echo "build.sh: $*" >&2; exit 1; }

((VMID < 1000)) || fail "VMID: $VMID; a template must be below 1000, where Aether never writes"
[[ -x "$here/agent" ]] || fail "agent: build it first (see README.md) and put it beside this script"
command -v virt-customize >/dev/null || fail "virt-customize is missing: apt-get install libguestfs-tools"
if qm status "$VMID" >/dev/null 2>&1; then fail "VMID: $VMID is taken; choose another or destroy it yourself"; fi

echo "downloading Debian and Envoy $ENVOY_VERSION"
curl -fsSL -o "$work/disk.qcow2" "$IMAGE_URL"
curl -fsSL -o "$work/SHA512SUMS" "$SUMS_URL"
want=$(awk -v name="$(basename "$IMAGE_URL")" '$2 == name { print $1 }' "$work/SHA512SUMS")
[[ -n "$want" ]] || fail "no checksum for $(basename "$IMAGE_URL") in $SUMS_URL"
echo "$want  $work/disk.qcow2" | sha512sum --check --quiet
curl -fsSL -o "$work/envoy" "$ENVOY_URL"
echo "$ENVOY_SHA256  $work/envoy" | sha256sum --check --quiet

echo "preparing the disk"
virt-customize -a "$work/disk.qcow2" \
  --install qemu-guest-agent,netplan.io \
  --run-command 'apt-get purge -y openssh-server && apt-get autoremove -y' \
  --run-command 'useradd --system --no-create-home --shell /usr/sbin/nologin envoy' \
  --mkdir /etc/envoy --mkdir /etc/aether \
  --run-command 'chown root:envoy /etc/envoy && chmod 2750 /etc/envoy && chmod 0700 /etc/aether' \
  --upload "$work/envoy:/usr/bin/envoy" --chmod 0755:/usr/bin/envoy \
  --upload "$here/agent:/usr/bin/aether-agent" --chmod 0755:/usr/bin/aether-agent \
  --upload "$here/files/aether-agent.service:/etc/systemd/system/aether-agent.service" \
  --upload "$here/files/envoy.service:/etc/systemd/system/envoy.service" \
  --upload "$here/files/envoy.path:/etc/systemd/system/envoy.path" \
  --upload "$here/files/90-aether.conf:/etc/sysctl.d/90-aether.conf" \
  --upload "$here/files/99-aether.cfg:/etc/cloud/cloud.cfg.d/99-aether.cfg" \
  --run-command 'systemctl enable aether-agent.service envoy.path qemu-guest-agent.service' \
  --run-command 'systemctl mask getty@tty1.service serial-getty@ttyS0.service' \
  --run-command 'passwd --lock root' \
  --run-command 'cloud-init clean --logs && apt-get clean' \
  --truncate /etc/machine-id

echo "making template $VMID"
qm create "$VMID" --name aether-envoy --ostype l26 --memory 1024 --cores 1 --cpu host \
  --scsihw virtio-scsi-single --serial0 socket --vga serial0 --agent enabled=1 \
  --net0 "virtio,bridge=$MGMT_BRIDGE" --net1 "virtio,bridge=$TENANT_BRIDGE" \
  --tags aether-template --description "Aether proxy: Debian 12, Envoy $ENVOY_VERSION"
qm importdisk "$VMID" "$work/disk.qcow2" "$STORAGE" >/dev/null
disk=$(qm config "$VMID" | sed -n 's/^unused0: //p')
[[ -n "$disk" ]] || fail "the imported disk is not in the configuration of VM $VMID"
qm set "$VMID" --scsi0 "$disk,discard=on" --boot order=scsi0
qm template "$VMID"
echo "template $VMID is ready"
