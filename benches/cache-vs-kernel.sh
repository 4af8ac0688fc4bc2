#!/usr/bin/env bash
# Cached blocks in process beside the kernel's page cache, in turn in one run: a file on XFS, and a bare loop device.
#
#   benches/cache-vs-kernel.sh [--size 1G] [--dir /dev/shm] [--cpu 1] [-- OPTIONS of `headworks-lab run cached`]
#
# Needs root (losetup, mount), mkfs.xfs, and twice the set in DIR beside three times the set of memory. Both loop devices lie
# on sparse files in DIR; nothing reaches them during a run, since all blocks are cached and written out before.
. "$(dirname "$0")/lib.sh"

size=1G dir=/dev/shm cpu=$(($(nproc) - 1))
while [ $# -gt 0 ]; do
    case $1 in
    --size) size=$2 && shift ;;
    --dir) dir=$2 && shift ;;
    --cpu) cpu=$2 && shift ;;
    --) shift && break ;;
    *) usage ;;
    esac
    shift
done

loops=() mounted=
undo() {
    [ -z "$mounted" ] || umount "$mounted"
    [ ${#loops[@]} -eq 0 ] || losetup -d "${loops[@]}"
    cleanup
}
trap undo EXIT

attach() { # IMAGE BYTES: LOOP is its device
    truncate -s "$2" "$1" && LEFTOVERS+=("$1") && LOOP=$(losetup -f --show "$1") || exit 1
    loops+=("$LOOP")
}

bytes=$(numfmt --from=iec "$size") || exit 1
attach "$dir/headworks-bench.$$.xfs" $((bytes + (512 << 20)))
mkfs.xfs -q "$LOOP" && mkdir "$SCRATCH/xfs" && mount "$LOOP" "$SCRATCH/xfs" || exit 1
mounted=$SCRATCH/xfs
attach "$dir/headworks-bench.$$.loop" "$bytes"

machine
mkfs.xfs -V
"$LAB" run cached --size "$size" --cpu "$cpu" --beside "xfs=$mounted/file" --beside "loop=$LOOP" "$@"
