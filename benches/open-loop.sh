#!/usr/bin/env bash
# Latency at a load: reads of 4 KiB of a cached image that arrive at random, whatever was answered, beside nbdkit with the kernel's cache.
#
#   benches/open-loop.sh [--rounds 5] [--runtime 2s]
#
# An image of 512 MiB, read once by each server. Then 50,000 requests a second, and 10, 50 and 90 % of nbdkit's rate of closed loops (64 in
# flight), all on one connection whose client polls on a processor of its own; latencies count from when a request was due. The servers
# alternate, with their defaults; `poll-0` is ours with `--poll-us 0`. Each line has percentiles in microseconds and the server's processor
# time for a request; the last ones are the medians of our ratios beside their goals.
. "$(dirname "$0")/lib.sh"

rounds=5 runtime=2s
rounds_and_runtime "$@"

image=$SCRATCH/disk.img socket=$SCRATCH/sock uri="nbd+unix:///?socket=$SCRATCH/sock"
fill "$image" 512

started() { # SERVER
    rm -f "$socket"
    case $1 in
    ours) start "$socket" "$HEADWORKS" serve "$image" -U "$socket" ;;
    poll-0) start "$socket" "$HEADWORKS" serve "$image" -U "$socket" --poll-us 0 ;;
    nbdkit) start "$socket" nbdkit -f -U "$socket" file "$image" ;;
    esac
    nbdcopy "$uri" null: || exit 1
}

measured() { # LOAD SERVER BENCH-OPTIONS...
    local load=$1 server=$2 before after
    shift 2
    before=$(cpu_ticks "$STARTED")
    "$HEADWORKS" bench --uri "$uri" --runtime "$runtime" --json "$@" >"$SCRATCH/json" || exit 1
    after=$(cpu_ticks "$STARTED")
    iops_of "$SCRATCH/json" >/dev/null || exit 1
    python3 -c 'import json, sys
run = json.load(open(sys.argv[1]))
at = run["read"]["latency_ns"]
us = [f"{at[key] / 1000:.0f}" for key in ("p50", "p99", "p99.9")]
print(*sys.argv[2:4], *us, "%.2f" % (int(sys.argv[4]) * 1e4 / run["ios"]), round(run["iops"]))' \
        "$SCRATCH/json" "$load" "$server" "$((after - before))" | tee -a "$RESULTS"
}

machine
started nbdkit
"$HEADWORKS" bench --uri "$uri" --runtime "$runtime" --json --iodepth 64 >"$SCRATCH/json" || exit 1
read -r peak _ < <(iops_of "$SCRATCH/json")
stop_all
peak=${peak%.*}
echo "nbdkit's closed loops: $peak requests a second"
echo "load server p50 p99 p99.9 us-of-CPU rate"
for round in $(seq "$rounds"); do
    echo "round $round"
    for server in ours poll-0 nbdkit; do
        started $server
        measured 50k $server --rate 50000 --iodepth 1024 --poll
        for percent in 10 50 90; do
            measured "$percent%" $server --rate $((peak * percent / 100)) --iodepth 1024 --poll
        done
        stop_all
    done
done

python3 - "$RESULTS" <<'END'
import statistics, sys
runs = {}
for load, server, *figures in (line.split() for line in open(sys.argv[1])):
    for name, value in zip(("p50", "p99", "p99.9", "CPU"), figures):
        runs.setdefault((load, name), {}).setdefault(server, []).append(float(value))
for (load, name), of in runs.items():
    ratios = [ours / theirs for ours, theirs in zip(of["ours"], of["nbdkit"])]
    middle = statistics.median(ratios)
    goal = f", goal at most 1: {'met' if middle <= 1 else 'MISSED'}" if load == "50k" and name != "p50" else ""
    print(f"{load}, {name} by nbdkit's: {middle:.2f} ({min(ratios):.2f}-{max(ratios):.2f}){goal}")
END
