#!/usr/bin/env bash
# Many overlays of one base, whose guests boot: how often the base is read and what it takes of memory, beside qemu-storage-daemon's qcow2
# overlays on a raw base in the kernel's page cache.
#
#   benches/shared-base.sh [--guests 100] [--size 1024] [--rounds 3] [--dir DIR]
#
# A boot reads a quarter of the base, the same for every guest, in requests of 4 to 128 KiB; guests boot one after the other. Then each
# writes 1 MiB in places of its own and boots again. --size is that of the base in MiB; DIR has to be on a disk whose file system has O_DIRECT.
. "$(dirname "$0")/lib.sh"

guests=100 size=1024 rounds=3 dir=$root/target
while [ $# -gt 0 ]; do
    case $1 in
    --guests) guests=$2 ;;
    --size) size=$2 ;;
    --rounds) rounds=$2 ;;
    --dir) dir=$2 ;;
    *) usage ;;
    esac
    shift 2
done

work=$(mktemp -d "$dir/headworks-bench.XXXXXX") || exit 1
LEFTOVERS+=("$work")
base=$work/base.img
fill "$base" "$size"
socket=$SCRATCH/s control=$SCRATCH/c

client() { # SERVER
    python3 "$root/benches/shared_base.py" client "$1" "$socket" "$STARTED" "$base" "$guests" "$control" >>"$RESULTS" || exit 1
    stop_all
    rm -f "$socket" "$control"
    printf '.' >&2
}
first() { start_probed "nbd+unix:///g0?socket=$socket" "$socket" "$@"; }

machine
qemu-img --version | head -n 1
export HEADWORKS
for ((round = 0; round < rounds; round++)); do
    rm -f "$work"/g*
    exports=() nodes=()
    for ((guest = 0; guest < guests; guest++)); do
        "$HEADWORKS" image create --base "$base" "$work/g$guest.hwo" >/dev/null || exit 1
        exports+=("g$guest=overlay:path=$work/g$guest.hwo")
        qemu-img create -q -f qcow2 -b "$base" -F raw "$work/g$guest.qcow2" "${size}M" || exit 1
        nodes+=(--blockdev "{\"driver\":\"qcow2\",\"node-name\":\"g$guest\",\"file\":{\"driver\":\"file\",\"filename\":\"$work/g$guest.qcow2\"},\"backing\":\"base\"}"
            --export "type=nbd,id=g$guest,node-name=g$guest,name=g$guest,writable=on")
    done
    python3 "$root/benches/shared_base.py" forget "$base"
    first "$HEADWORKS" serve --cache "$((size * 2))M" -U "$socket" --control "$control" "${exports[@]}"
    client headworks
    rm -f "$work"/*.hwo
    for ((guest = 0; guest < guests; guest++)); do
        "$HEADWORKS" image create --base "$base" "$work/g$guest.hwo" >/dev/null || exit 1
    done
    first "$HEADWORKS" serve --cache "$((size * 2))M" -U "$socket" --control "$control" "${exports[@]}"
    "$HEADWORKS" ctl "$control" set hw0/queue/read_ahead_kb 0 >/dev/null || exit 1
    client headworks-no-ra
    python3 "$root/benches/shared_base.py" forget "$base"
    first qemu-storage-daemon --nbd-server "addr.type=unix,addr.path=$socket" \
        --blockdev "{\"driver\":\"raw\",\"node-name\":\"base\",\"read-only\":true,\"file\":{\"driver\":\"file\",\"filename\":\"$base\",\"read-only\":true}}" "${nodes[@]}"
    client qsd
done
printf '\n' >&2
python3 "$root/benches/shared_base.py" table "$RESULTS"
