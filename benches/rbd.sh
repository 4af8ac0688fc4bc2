#!/usr/bin/env bash
# Images of a Ceph cluster, side by side in one run on one cluster of one OSD (scripts/ceph): headworks (rbd:), fio's rbd engine and
# qemu-storage-daemon (blockdev rbd).
#
#   benches/rbd.sh [--rounds 5] [--runtime 2s] [--size 256]
#
# 1. Uncached random reads and writes of 4 KiB, depth 16: headworks without a cache, over NBD and in process (`bench --device`), and fio, which is in process,
# with rbd_cache=false. 2. Cached
# reads that hit and writes that stay in the cache, depth 16, over the first 64 MiB: rbd: beside file:. 3. Sequential writes of 64 KiB, depth 16, with a flush at the end,
# which is in the time: headworks with its cache, qemu-storage-daemon without and with rbd_cache, and what the cluster takes at most: fio in process with
# requests of 4 MiB, 8 at once; images of 1.5 GiB, written once before, so that at up to
# 768 MiB/s no run of 2 s comes to a block again. Every other image is filled before, and each client has its own. Every round runs each of them once,
# in turn; medians are compared, and least and greatest are shown.
# Goals: 1. at least 0.95 times fio's rate; 2. at least 0.95 times the rate of file:; 3. at least 3 times qemu-storage-daemon's rate without
# rbd_cache, and 1.5 times with it. A goal that is missed prints MISSED, and the exit code is 1. --size is in MiB.
. "$(dirname "$0")/lib.sh"

rounds=5 runtime=2s size=256
while [ $# -gt 0 ]; do
    case $1 in
    --rounds) rounds=$2 ;;
    --runtime) runtime=$2 ;;
    --size) size=$2 ;;
    *) usage ;;
    esac
    shift 2
done
[ "$size" -ge 64 ] || usage
QSD=${QSD:-qemu-storage-daemon}
has() { command -v "$1" >/dev/null; }
fail() {
    echo "rbd: error: $*" >&2
    exit 1
}

started=$("$root/scripts/ceph" start "$SCRATCH/ceph" 2>&1)
case $? in
0) ;;
77) echo "skip: $started"; exit 0 ;;
*) fail "the cluster does not start: $started" ;;
esac
end_cluster() {
    [ ${#PIDS[@]} -eq 0 ] || kill "${PIDS[@]}" 2>/dev/null
    "$root/scripts/ceph" stop "$SCRATCH/ceph"
    cleanup
}
trap end_cluster EXIT
CONF=$SCRATCH/ceph/ceph.conf
export CEPH_CONF=$CONF
{ cat "$CONF" && echo 'rbd_cache = false'; } >"$SCRATCH/uncached.conf"

machine
ceph --version
has_fio() { has fio && fio --enghelp 2>/dev/null | grep -qw rbd; }
has_fio && fio --version || echo "skip: there is no fio with an rbd engine: apt-get install fio"
has_qsd() { has "$QSD" && { compgen -G '/usr/lib*/*/qemu/block-rbd.so' || compgen -G '/usr/lib*/qemu*/block-rbd.so'; } >/dev/null; }
has_qsd && "$QSD" --version | head -n 1 ||
    echo "skip: there is no $QSD with rbd: apt-get install qemu-system-common qemu-block-extra"

filled=$SCRATCH/filled
fill "$filled" "$size"
image() { # NAME
    rbd import --no-progress "$filled" "rbd/$1" || fail "the image $1 cannot be made"
}
sequential() { rbd create --size 1536M "rbd/$1" || fail "the image $1 cannot be made"; }
uri() { echo "nbd+unix:///?socket=$SCRATCH/$1.sock"; }
ours() { # NAME SPEC OPTIONS...
    start "$SCRATCH/$1.sock" "$HEADWORKS" serve -U "$SCRATCH/$1.sock" "${@:3}" "$2"
}
qsd() { # NAME DIRECT
    sequential "$1"
    start "$SCRATCH/$1.sock" "$QSD" --blockdev "driver=rbd,node-name=d,pool=rbd,image=$1,conf=$CONF,user=admin,cache.direct=$2" \
        --nbd-server "addr.type=unix,addr.path=$SCRATCH/$1.sock,max-connections=16" --export type=nbd,id=e,node-name=d,name=,writable=on
}
# Nothing is written out while a run lasts.
in_cache=(--cache $((size + 256))M --set vm/dirty_bytes=256M --set vm/dirty_background_bytes=192M --set vm/dirty_expire_centisecs=60000)
image in-process
image uncached && ours uncached "rbd:image=rbd/uncached,conf=$CONF" --cache 0
image cached && ours cached-rbd "rbd:image=rbd/cached,conf=$CONF" "${in_cache[@]}"
cp "$filled" "$SCRATCH/file" && ours cached-file "file:path=$SCRATCH/file" "${in_cache[@]}"
sequential headworks && ours headworks "rbd:image=rbd/headworks,conf=$CONF" --cache "$((size + 256))M"
! has_fio || { image fio && sequential fio-large; }
! has_qsd || { qsd qsd on && qsd qsd-cache off; }

run() { # NAME RW BS SIZE: leaves the JSON
    "$HEADWORKS" bench --uri "$(uri "$1")" --rw "$2" --bs "$3" --iodepth 16 --size "$4" --runtime "$runtime" --overwrite --json >"$SCRATCH/run.json" ||
        fail "the client failed on $1 ($2)"
}
rate() { # GROUP CELL SERVER NAME RW BS SIZE
    local iops
    run "${@:4}"
    read -r iops _ <<<"$(iops_of "$SCRATCH/run.json")"
    result "$1" "$2" "$3" - "$iops" 0
}
flush() { qemu-io -f raw -c flush "$(uri "$1")" >/dev/null || fail "$1 does not flush"; }
written() { # NAME: MiB/s, the flush included
    local began=$EPOCHREALTIME total
    run "$1" write 64k 1536M
    flush "$1"
    read -r _ total <<<"$(iops_of "$SCRATCH/run.json")"
    result sequential write "$1" - "$(awk -v a="$began" -v b="$EPOCHREALTIME" -v n="$total" 'BEGIN { print n / 16 / (b - a) }')" 0
}
in_process() { # RW
    local iops
    "$HEADWORKS" bench --device "rbd:image=rbd/in-process,conf=$CONF" --rw "$1" --bs 4k --iodepth 16 --size "${size}M" --runtime "$runtime" --json \
        >"$SCRATCH/run.json" || fail "the bench in process failed ($1)"
    read -r iops _ <<<"$(iops_of "$SCRATCH/run.json")"
    result uncached "$1" in-process - "$iops" 0
}
fio_rate() { # IMAGE RW BS DEPTH: requests a second
    CEPH_CONF=$SCRATCH/uncached.conf fio --name=j --ioengine=rbd --clientname=admin --pool=rbd --rbdname="$1" --rw="$2" --bs="$3" --iodepth="$4" \
        --norandommap --randrepeat=0 --time_based --runtime="$runtime" --output-format=json --output="$SCRATCH/fio.json" >/dev/null || fail "fio failed ($2)"
    python3 -c 'import json, sys
job = json.load(open(sys.argv[1]))["jobs"][0]
print(job[sys.argv[2]]["iops"])' "$SCRATCH/fio.json" "${2#rand}"
}

for kind in rbd file; do
    nbdcopy "$(uri "cached-$kind")" null: || fail "the cache of $kind is not filled"
done
run headworks write 64k 1536M && flush headworks
! has_qsd || for name in qsd qsd-cache; do run "$name" write 64k 1536M && flush "$name"; done
for ((round = 1; round <= rounds; round++)); do
    for rw in randread randwrite; do
        rate uncached "$rw" headworks uncached "$rw" 4k "${size}M"
        in_process "$rw"
        ! has_fio || result uncached "$rw" fio - "$(fio_rate fio "$rw" 4k 16)" 0
        for kind in rbd file; do
            rate cached "$rw" "$kind" "cached-$kind" "$rw" 4k 64M
            flush "cached-$kind"
        done
    done
    written headworks
    ! has_qsd || { written qsd && written qsd-cache; }
    ! has_fio || result sequential write fio-4M - "$(fio_rate fio-large write 4M 8 | awk '{ print 4 * $1 }')" 0
done
echo >&2

python3 - "$RESULTS" <<'PY'
import collections
import statistics
import sys

runs = collections.defaultdict(list)
for line in open(sys.argv[1]):
    group, cell, name, _, rate, _ = line.rstrip("\n").split("\t")
    runs[group, cell, name].append(float(rate))
print(f"{'':10} {'':10} {'':12} {'median':>9}  {'least to greatest':>19}")
for (group, cell, name), all in runs.items():
    unit = "MiB/s" if group == "sequential" else "/s"
    print(f"{group:10} {cell:10} {name:12} {statistics.median(all):9.0f}  {min(all):9.0f}{max(all):10.0f} {unit}")
missed = 0

def goal(group, cell, ours, other, wanted):
    global missed
    if (group, cell, other) not in runs:
        return
    times = statistics.median(runs[group, cell, ours]) / statistics.median(runs[group, cell, other])
    missed += times < wanted
    print(f"{group}, {cell}: {ours} over {other}: {times:.2f}x, wanted {wanted}x or more: {'met' if times >= wanted else 'MISSED'}")

for cell in ["randread", "randwrite"]:
    goal("uncached", cell, "in-process", "fio", 0.95)
    goal("uncached", cell, "headworks", "fio", 0.95)
    goal("cached", cell, "rbd", "file", 0.95)
goal("sequential", "write", "headworks", "qsd", 3)
goal("sequential", "write", "headworks", "qsd-cache", 1.5)
sys.exit(1 if missed else 0)
PY
