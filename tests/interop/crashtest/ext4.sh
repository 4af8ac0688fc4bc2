#!/bin/bash
# ext4 on a disk whose power is cut: a program for `headworks crashtest` where the kernel has an NBD client.
#
#   ext4.sh setup | load fsync | load forgetful | check      with $uri
#
# `load` writes files and prints the number of each when it is promised to be there: after fsync of the file and of its folder, or,
# forgetful, when it is written. `check` lets the kernel replay the journal, and compares.
set -u
export PATH=$PATH:/usr/sbin:/sbin
device=/dev/nbd0
mount=${MOUNT:-/tmp/ext4-crashtest}
mkdir -p "$mount"

attach() {
    # What the run before left: its server is dead, and what the kernel sent it ends when the device is detached, not before.
    while mountpoint -q "$mount" || [ -e /sys/block/nbd0/pid ]; do
        nbd-client -d $device >/dev/null 2>&1
        umount "$mount" 2>/dev/null
        sleep 0.02
    done
    local export=${uri#nbd+unix:///}
    nbd-client -unix "${uri#*socket=}" $device -N "${export%%\?*}" >/dev/null
}
detach() { umount "$mount" 2>/dev/null; nbd-client -d $device >/dev/null; }
# Without programs: each start of one is dear in user-mode Linux.
contents() { printf -v text '%-*s' $((20000 + $1 * 100)) "file $1"; }

case $1 in
setup)
    attach && mkfs.ext4 -q $device && detach
    ;;
load)
    attach && mount $device "$mount" || exit 1
    for number in {1..8}; do
        contents "$number"
        printf %s "$text" >"$mount/$number" || exit 1
        [ "$2" = forgetful ] || sync "$mount/$number" "$mount" || exit 1
        echo "$number"
    done
    detach
    ;;
check)
    attach </dev/null && mount $device "$mount" || { echo "ext4 cannot be mounted"; exit 1; }
    lost=0
    while read -r number; do
        contents "$number"
        found=
        [ ! -e "$mount/$number" ] || IFS= read -r -d '' found <"$mount/$number"
        [ "$found" = "$text" ] || { echo "file $number was promised and is not there"; lost=1; }
    done
    umount "$mount" && said=$(e2fsck -fn $device 2>&1) || { echo "$said"; lost=1; }
    detach
    exit $lost
    ;;
esac
