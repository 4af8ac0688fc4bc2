#!/usr/bin/env bash
# What people do first with a disk: copy it. `headworks serve disk.img` beside `nbdkit file disk.img` and qemu-nbd, all with their defaults.
#
#   benches/copying.sh [--size 4G] [--dir .] [--rounds 5]
#
# A file of random bytes, and a client:
#   cold      nbdcopy to nothing, after the kernel's caches were dropped and the server was started
#   warm      once more from the same server; also from `limit` (benches/limit.c): the same bytes by one call a read, with a copy or without
#   convert   qemu-img convert to nothing, warm
#   sequence  reads of 128 KiB in order, four at a time, cold
#   in        nbdcopy into a file of the same size, with a flush
#   burst     writes of 1 MiB, eight at a time, for 1.5 s after a flush
#   sync      writes of 4 KiB with a flush after each (fio)
# The servers alternate. Each line has MiB/s and the server's processor time in microseconds a MiB; the last ones are the medians of our ratio
# to the better peer (for time: to nbdkit) beside their goals. With root, to drop caches.
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

# Runs a client; adds "CELL SERVER MiB/s us/MiB" to the results. MIB is 0 for a client that runs for a time: its last line has MiB and seconds.
measured() { # CELL SERVER MIB CLIENT...
    local cell=$1 server=$2 mib=$3 began ended before after
    shift 3
    before=$(cpu_ticks "$STARTED") began=$EPOCHREALTIME
    "$@" >"$SCRATCH/client" || { cat "$SCRATCH/client" >&2; exit 1; }
    ended=$EPOCHREALTIME after=$(cpu_ticks "$STARTED")
    [ "$mib" -gt 0 ] || read -r mib ended < <(awk -v began="$began" 'END { printf "%s %.6f\n", $1, began + $2 }' "$SCRATCH/client")
    awk -v cell="$cell" -v server="$server" -v mib="$mib" -v s="$began" -v e="$ended" -v t="$((after - before))" \
        'BEGIN { printf "%s %s %.1f %.0f\n", cell, server, mib / (e - s), t * 10000 / mib }' | tee -a "$RESULTS"
}

bench() { # RUNTIME BENCH-OPTIONS...
    "$HEADWORKS" bench --uri "$uri" --json --runtime "$@" >"$SCRATCH/json" || return 1
    python3 -c 'import json, sys
run = json.load(open(sys.argv[1]))
print(run["bytes_per_second"] * run["seconds"] / (1 << 20), run["seconds"])' "$SCRATCH/json"
}

synced() {
    fio --name=sync --ioengine=nbd --uri="$uri" --rw=randwrite --bs=4k --fsync=1 --time_based --runtime=2 --size=256m --output-format=json \
        --output="$SCRATCH/json" || return 1
    python3 -c 'import json, sys
write = json.load(open(sys.argv[1]))["jobs"][0]["write"]
print(write["io_kbytes"] / 1024, write["runtime"] / 1000)' "$SCRATCH/json"
}

flushed() { nbdsh -u "$uri" -c 'h.flush()' && sync; }

mib=$((bytes >> 20))
null="json:{\"driver\":\"raw\",\"file\":{\"driver\":\"null-co\",\"size\":$bytes}}"
limits=()
if command -v cc >/dev/null && cc -O2 -pthread -o "$SCRATCH/limit" benches/limit.c; then limits=(limit limit-sendfile); fi

machine
for round in $(seq "$rounds"); do
    echo "round $round"
    for server in ours nbdkit qemu; do
        cold_start $server "$image"
        measured cold $server "$mib" nbdcopy "$uri" null:
        measured warm $server "$mib" nbdcopy "$uri" null:
        measured convert $server "$mib" qemu-img convert -n -f raw -O raw "nbd+unix:///?socket=$socket" "$null"
        stop_all
        cold_start $server "$image"
        measured sequence $server 0 bench 1s --rw read --bs 128k --iodepth 4
        stop_all
        rm -f "$dir/headworks-copying.in"
        truncate -s "$bytes" "$dir/headworks-copying.in"
        cold_start $server "$dir/headworks-copying.in"
        measured in $server "$mib" nbdcopy --flush "$image" "$uri"
        flushed
        measured burst $server 0 bench 1500ms --rw write --bs 1m --iodepth 8 --overwrite
        flushed
        measured sync $server 0 synced
        stop_all
    done
    for server in ${limits[@]+"${limits[@]}"}; do
        rm -f "$socket"
        start "$socket" "$SCRATCH/limit" "$socket" "$bytes" "${server#limit-}"
        measured warm $server "$mib" nbdcopy "$uri" null:
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

goals = {"cold": 1.2, "warm": 1.8, "convert": 1.8, "sequence": 1.2, "in": 1.8, "burst": 1.2, "sync": 1.1}
for cell, goal in goals.items():
    of = runs[cell]
    pairs = zip(of["ours"], of["nbdkit"], of["qemu"])
    ratio(f"{cell}, MiB/s of the better peer", [a[0] / max(b[0], c[0]) for a, b, c in pairs], f"at least {goal}", lambda m: m >= goal)
for limit, goal in ("limit", "at least 0.85"), ("limit-sendfile", "none"):
    pairs = list(zip(runs["warm"]["ours"], runs["warm"].get(limit, [])))
    if pairs:
        ratio(f"warm, MiB/s of {limit}", [a[0] / b[0] for a, b in pairs], goal, lambda m: goal == "none" or m >= 0.85)
        ratio(f"warm, processor time of {limit}'s", [a[1] / b[1] for a, b in pairs], "none", lambda m: True)
pairs = zip(runs["cold"]["ours"], runs["cold"]["nbdkit"])
ratio("cold, processor time of nbdkit's", [a[1] / b[1] for a, b in pairs], "at most 0.8", lambda m: m <= 0.8)
END
