#!/usr/bin/env bash
# Runs a bench against the peers of the newest Debian, whatever this machine has.
#
#   benches/newest.sh benches/vhost-user.sh --rounds 5
#   SUITE=sid benches/newest.sh benches/nbd-peers.sh
#
# A base system of the suite (trixie) with nbdkit, qemu-nbd and qemu-storage-daemon is unpacked once, in target/debian/SUITE (700 MB).
# The bench finds these three programs first in PATH: each runs in the base system, with this machine's folders for data in their places.
# Clients and the kernel are this machine's. As root, since chroot and mounts are.
set -u -o pipefail
cd "$(dirname "$0")/.." || exit 1
suite=${SUITE:-trixie}
root=$PWD/target/debian/$suite
[ $# -gt 0 ] || { echo "usage: benches/newest.sh BENCH [OPTIONS...]" >&2; exit 2; }
[ "$(id -u)" -eq 0 ] || { echo "newest: error: chroot takes root" >&2; exit 1; }
command -v debootstrap >/dev/null || { echo "newest: error: there is no debootstrap: apt-get install debootstrap" >&2; exit 1; }
if [ ! -e "$root.whole" ]; then
    echo "newest: unpacks Debian $suite in $root" >&2
    mkdir -p "$root" && debootstrap --variant=minbase --include=nbdkit,qemu-utils,qemu-system-common "$suite" "$root" >"$root.log" 2>&1 ||
        { tail -n 5 "$root.log" >&2; exit 1; }
    touch "$root.whole"
fi

programs=$(mktemp -d /tmp/headworks-newest.XXXXXX) || exit 1
trap 'rm -rf "$programs"' EXIT
for program in nbdkit qemu-nbd qemu-storage-daemon; do
    cat >"$programs/$program" <<END
#!/bin/sh
# The process that a bench starts becomes the program: the mounts are in a name space of its own.
exec unshare --mount --propagation slave sh -c 'root=\$1 folder=\$2 && shift 2
for place in /dev /proc /sys /run /tmp "\$folder"; do
    mkdir -p "\$root\$place" && mount --rbind "\$place" "\$root\$place" || exit 1
done
exec chroot "\$root" sh -c "cd \"\\\$0\" && exec \"\\\$@\"" "\$folder" "\$@"' - "$root" "\$PWD" /usr/bin/$program "\$@"
END
    chmod +x "$programs/$program"
done
for program in nbdkit qemu-nbd qemu-storage-daemon; do "$programs/$program" --version | head -n 1; done
PATH=$programs:$PATH "$@"
