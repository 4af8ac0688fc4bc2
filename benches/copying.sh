#!/usr/bin/env bash
# What people do first with a disk: copy it. `headworks serve disk.img` beside `nbdkit file disk.img` and qemu-nbd, all with their defaults.
#
#   benches/copying.sh [--size 4G] [--dir .] [--rounds 5]
#
# A file of random bytes, and nbdcopy. Cold: the kernel's caches are dropped and a server starts. Warm: once more from the same server.
# In: into a file of the same size, with a flush. The servers alternate. Each line has MiB/s and the server's processor time in
# microseconds a MiB; the last ones are the medians of our ratio to the better peer (for time: to nbdkit) beside their goals. With root,
# to drop caches.
. "$(dirname "$0")/lib.sh"

size=4G dir=. rounds=5
while [ $# -gt 0 ]; do
    case $1 in
    --size) size=$2 && shift ;;
    --dir) dir=$2 && shift ;;
    --rounds) rounds=$2 && shift ;;
    *) usage ;;
    esac
    shift
done

image=$dir/headworks-copying.img socket=$SCRATCH/sock uri="nbd+unix:///?socket=$SCRATCH/sock"
LEFTOVERS+=("$image" "$dir/headworks-copying.in")
bytes=$(numfmt --from=iec "$size")
head -c "$bytes" /dev/urandom >"$image" || exit 1
sync

cold_start() { # SERVER FILE
    rm -f "$socket"
    echo 3 >/proc/sys/vm/drop_caches || exit 1
    case $1 in
    ours) start "$socket" "$HEADWORKS" serve "$2" -U "$socket" ;;
    nbdkit) start "$socket" nbdkit -f -U "$socket" file "$2" ;;
    qemu) start "$socket" qemu-nbd -t -e 8 -f raw -k "$socket" "$2" ;;
    esac
}

# Runs a copy; adds "CELL SERVER MiB/s us/MiB" to the results.
copied() { # CELL SERVER NBDCOPY-ARGUMENTS...
    local cell=$1 server=$2 began ended before after
    shift 2
    before=$(cpu_ticks "$STARTED") began=$EPOCHREALTIME
    nbdcopy "$@" || exit 1
    ended=$EPOCHREALTIME after=$(cpu_ticks "$STARTED")
    awk -v cell="$cell" -v server="$server" -v mib="$((bytes >> 20))" -v s="$began" -v e="$ended" -v t="$((after - before))" \
        'BEGIN { printf "%s %s %.0f %.0f\n", cell, server, mib / (e - s), t * 10000 / mib }' | tee -a "$RESULTS"
}

machine
for round in $(seq "$rounds"); do
    echo "round $round"
    for server in ours nbdkit qemu; do
        cold_start $server "$image"
        copied cold $server "$uri" null:
        copied warm $server "$uri" null:
        stop_all
        rm -f "$dir/headworks-copying.in"
        truncate -s "$bytes" "$dir/headworks-copying.in"
        cold_start $server "$dir/headworks-copying.in"
        copied in $server --flush "$image" "$uri"
        stop_all
    done
done

python3 - "$RESULTS" <<'END'
import statistics, sys
runs = {}
for cell, server, speed, cpu in (line.split() for line in open(sys.argv[1])):
    runs.setdefault(cell, {}).setdefault(server, []).append((float(speed), float(cpu)))

def ratio(name, ratios, goal, met):
    median = statistics.median(ratios)
    print(f"{name}: {median:.2f} ({min(ratios):.2f}-{max(ratios):.2f}), goal {goal}: {'met' if met(median) else 'MISSED'}")

for cell, goal in (("cold", 1.2), ("warm", 1.8), ("in", 1.8)):
    of = runs[cell]
    pairs = zip(of["ours"], of["nbdkit"], of["qemu"])
    ratio(f"{cell}, MiB/s of the better peer", [a[0] / max(b[0], c[0]) for a, b, c in pairs], f"at least {goal}", lambda m: m >= goal)
pairs = zip(runs["cold"]["ours"], runs["cold"]["nbdkit"])
ratio("cold, processor time of nbdkit's", [a[1] / b[1] for a, b in pairs], "at most 0.8", lambda m: m <= 0.8)
END
