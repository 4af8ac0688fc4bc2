#!/usr/bin/env bash
# Cached blocks in process beside the kernel's page cache (files on XFS and ext4, bare loop devices), in turn in one run.
#
#   benches/cache-vs-kernel.sh [--size 1G] [--dir /dev/shm] [--cpu 1] [--jobs] [-- OPTIONS of `headworks-lab run cached`, or with --jobs `seed-003-jobs`]
#
# One thread on one CPU; with --jobs seed 003's job: four volumes with 252 threads each, and readers beside a trim of 2 GiB.
# Needs root (losetup, mount), mkfs.xfs, mkfs.ext4, and three times the set in DIR beside three times the set of memory; with --jobs 16 GiB of memory
# in all. The loop devices lie on sparse files in DIR; nothing reaches them during a run, since all blocks are cached and written out before.
. "$(dirname "$0")/lib.sh"

size=1G dir=/dev/shm cpu=$(($(nproc) - 1)) jobs=
while [ $# -gt 0 ]; do
    case $1 in
    --size) size=$2 && shift ;;
    --dir) dir=$2 && shift ;;
    --cpu) cpu=$2 && shift ;;
    --jobs) jobs=yes ;;
    --) shift && break ;;
    *) usage ;;
    esac
    shift
done

loops=() mounted=()
undo() {
    [ ${#mounted[@]} -eq 0 ] || umount "${mounted[@]}"
    [ ${#loops[@]} -eq 0 ] || losetup -d "${loops[@]}"
    cleanup
}
trap undo EXIT

attach() { # NAME BYTES: LOOP is its device
    local image=$dir/headworks-bench.$$.$1
    truncate -s "$2" "$image" && LEFTOVERS+=("$image") && LOOP=$(losetup -f --show "$image") || exit 1
    loops+=("$LOOP")
}

filesystem() { # NAME BYTES OPTIONS-OF-MKFS...: mounted at $SCRATCH/NAME
    attach "$1" "$2"
    mkfs."$1" -q "${@:3}" "$LOOP" && mkdir "$SCRATCH/$1" && mount "$LOOP" "$SCRATCH/$1" || exit 1
    mounted+=("$SCRATCH/$1")
}

bytes=$(numfmt --from=iec "$size") || exit 1
# With --jobs the first of four volumes has what is trimmed, too.
[ -z "$jobs" ] || bytes=$((bytes + (2 << 30)))
filesystem xfs $((bytes + (512 << 20)))
# Nothing of it is left to be made in the background.
filesystem ext4 $((bytes + (512 << 20))) -E lazy_itable_init=0,lazy_journal_init=0

machine
mkfs.xfs -V
mkfs.ext4 -V 2>&1 | head -n 1
if [ -z "$jobs" ]; then
    attach loop "$bytes"
    "$LAB" run cached --size "$size" --cpu "$cpu" --beside "xfs=$SCRATCH/xfs/file" --beside "ext4=$SCRATCH/ext4/file" --beside "loop=$LOOP" "$@"
else
    devices=
    for volume in 0 1 2 3; do
        attach "loop$volume" "$bytes"
        devices+=${devices:+,}$LOOP
    done
    "$LAB" run seed-003-jobs --size "$size" --beside "ext4=$SCRATCH/ext4" --beside "xfs=$SCRATCH/xfs" --beside "loop=$devices" "$@"
fi
