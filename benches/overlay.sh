#!/usr/bin/env bash
# Overlays beside qcow2 overlays of qemu-storage-daemon, nbdkit's cow filter and raw files, in turn in one run, all but nbdkit's with O_DIRECT.
#
#   benches/overlay.sh [--rounds 5] [--dir DIR] [--size 512] [--before BINARY]
#
# With --before another build of headworks is measured in each round, too, in the row `before`.
# First writes: 3000 of 4 KiB at depth 16, each in a cluster of its own of 128 KiB. The client of all servers is benches/overlay.py, with `headworks bench`. DIR has to be on a
# disk whose file system has O_DIRECT; --size is that of the base in MiB.
. "$(dirname "$0")/lib.sh"

rounds=5 dir=$root/target size=512 before=
while [ $# -gt 0 ]; do
    case $1 in
    --rounds) rounds=$2 ;;
    --dir) dir=$2 ;;
    --size) size=$2 ;;
    --before) before=$2 ;;
    *) usage ;;
    esac
    shift 2
done

work=$(mktemp -d "$dir/headworks-bench.XXXXXX") || exit 1
LEFTOVERS+=("$work")
base=$work/base.img
fill "$base" "$size"
bytes=$((size << 20))
socket=$SCRATCH/s

measure() { # SERVER CELLS...: what the client finds of the server that was just started
    python3 "$root/benches/overlay.py" client "$socket" "$STARTED" "$1" "${@:2}" >>"$RESULTS" || exit 1
    stop_all
    rm -f "$socket"
    printf '.' >&2
}
ours() { start "$socket" "${2:-$HEADWORKS}" serve --cache 0 -U "$socket" "$1"; }
qcow2() { # OPTIONS of the format
    qemu-img create -q -f qcow2 -b "$base" -F raw -o "$1" "$work/t.qcow2" "${size}M" || exit 1
    local file='"cache":{"direct":true},"aio":"io_uring"'
    start "$socket" qemu-storage-daemon --blockdev "{\"driver\":\"qcow2\",\"node-name\":\"t\",\"file\":{\"driver\":\"file\",\"filename\":\"$work/t.qcow2\",$file},\"backing\":{\"driver\":\"raw\",\"file\":{\"driver\":\"file\",\"read-only\":true,\"filename\":\"$base\",$file}}}" \
        --nbd-server addr.type=unix,addr.path="$socket" --export type=nbd,id=e,node-name=t,name=,writable=on
}

machine
qemu-img --version | head -n 1
cells=(first flush-new flush-old over read)
export HEADWORKS
for ((round = 0; round < rounds; round++)); do
    rm -f "$work"/t.*
    "$HEADWORKS" image create --base "$base" "$work/t.hwo" >/dev/null || exit 1
    ours "overlay:path=$work/t.hwo"
    measure overlay "${cells[@]}"
    if [ -n "$before" ]; then
        rm -f "$work"/t.*
        "$before" image create --base "$base" "$work/t.hwo" >/dev/null || exit 1
        ours "overlay:path=$work/t.hwo" "$before"
        measure before "${cells[@]}"
    fi
    # A raw file that begins as holes, for what a first write costs the file system; and one that is full, for the rest.
    truncate -s "$bytes" "$work/t.sparse"
    ours "file:path=$work/t.sparse"
    measure raw-sparse first flush-new flush-old
    cp --sparse=never "$base" "$work/t.raw" && sync "$work/t.raw" || exit 1
    ours "file:path=$work/t.raw"
    measure raw "${cells[@]:1}"
    rm -f "$work/t.raw"
    qcow2 compat=1.1
    measure qcow2 "${cells[@]}"
    rm -f "$work/t.qcow2"
    qcow2 extended_l2=on,cluster_size=128k
    measure qcow2-ext-l2 "${cells[@]}"
    TMPDIR=$work start "$socket" nbdkit -f --filter=cow -U "$socket" file "$base"
    measure nbdkit-cow "${cells[@]}"
done
printf '\n' >&2

# The bitmap of a TiB, all of it set, after it was evicted from the kernel's cache.
truncate -s 1T "$work/tib.img"
"$HEADWORKS" image create --base "$work/tib.img" "$work/tib.hwo" >/dev/null || exit 1
open_ms() { # WHAT
    local began
    for ((round = 0; round < rounds; round++)); do
        began=$EPOCHREALTIME
        "$HEADWORKS" image check "$work/tib.hwo" >/dev/null || exit 1
        awk -v a="$began" -v b="$EPOCHREALTIME" -v what="$1" 'BEGIN { printf "%s\topen\t%f\n", what, (b - a) * 1000 }' >>"$RESULTS"
    done
}
open_ms empty-tib
python3 -c 'import sys
with open(sys.argv[1], "r+b") as file:
    file.seek(4096)
    for _ in range(32):
        file.write(b"\xff" * (1 << 20))' "$work/tib.hwo"
open_ms full-tib
python3 "$root/benches/overlay.py" table "$RESULTS"
