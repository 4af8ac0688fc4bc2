#!/usr/bin/env bash
# What one look at a server costs, in instructions beside those of its requests, by callgrind: `ctl why`, `top --batch` and a scrape each second.
#
#   benches/looks.sh [--exports 20] [--looks 20] [--runtime 3s]
#
# A server of null exports of two tenants under valgrind answers 4 KiB reads of one client: for a second, for six, and for a second with looks after. The
# differences are the instructions of a request and of a look of all three kinds, of the server's process, without the kernel's. What a look each
# second adds to a request follows from the requests a second that the same server answers on one CPU by itself, which are measured, at depth
# 32 and at depth 1. Exit 1: more than 1 % at depth 32.
. "$(dirname "$0")/lib.sh"

exports=20 looks=20 runtime=3s goal=1.0
while [ $# -gt 0 ]; do
    case $1 in
    --exports) exports=$2 ;;
    --looks) looks=$2 ;;
    --runtime) runtime=$2 ;;
    *) usage ;;
    esac
    shift 2
done

machine
specs=()
for ((n = 0; n < exports; n++)); do specs+=("e$n=null:size=1G,tenant=t$((n % 2))"); done
served=(serve --cache 0 --shards 1 --engine threads --poll-us 0 --metrics 127.0.0.1:0 --tenant t0 --tenant t1 --nr-requests 64)

read_for() { # SOCKET TIME: the number of reads
    "$HEADWORKS" bench --uri "nbd+unix:///e0?socket=$1" --rw randread --bs 4k --iodepth 32 --runtime "$2" --json >"$SCRATCH/bench" || return 1
    iops_of "$SCRATCH/bench" | cut -d' ' -f2
}

look() { # NAME
    local page
    page=$(sed -n 's/^metrics: //p' "$SCRATCH/$1.log")
    "$HEADWORKS" ctl "$SCRATCH/$1.ctl" why >"$SCRATCH/why" && "$HEADWORKS" top "$SCRATCH/$1.ctl" --batch 1 >"$SCRATCH/top" &&
        curl -sf "$page" >"$SCRATCH/page"
}

count() { # NAME TIME LOOKS: INSTRUCTIONS and READS of a server that is read for this time, and has so many looks
    local socket=$SCRATCH/$1 n
    start_probed "nbd+unix:///e0?socket=$socket" "$socket" valgrind --tool=callgrind --callgrind-out-file="$SCRATCH/callgrind.$1" \
        "$HEADWORKS" "${served[@]}" -U "$socket" --control "$socket.ctl" "${specs[@]}" || return 1
    READS=$(read_for "$socket" "$2") || return 1
    for ((n = 0; n < $3; n++)); do look "$1" || return 1; done
    kill -TERM "$STARTED" && wait "$STARTED"
    INSTRUCTIONS=$(sed -n 's/.*Collected : //p' "$socket.log")
}

count few 1s 0 && a=$INSTRUCTIONS few=$READS && count many 6s 0 && b=$INSTRUCTIONS many=$READS || exit 1
count looks 1s "$looks" && c=$INSTRUCTIONS looked=$READS || exit 1
start_probed "nbd+unix:///e0?socket=$SCRATCH/plain" "$SCRATCH/plain" taskset -c 0 "$HEADWORKS" "${served[@]}" -U "$SCRATCH/plain" "${specs[@]}"
rate() { # DEPTH: requests a second
    "$HEADWORKS" bench --uri "nbd+unix:///e0?socket=$SCRATCH/plain" --rw randread --bs 4k --iodepth "$1" --runtime "$runtime" --json >"$SCRATCH/rate" || exit 1
    iops_of "$SCRATCH/rate" | cut -d' ' -f1
}
deep=$(rate 32) single=$(rate 1)
awk -v a="$a" -v b="$b" -v c="$c" -v n=$((many - few)) -v more=$((looked - few)) -v looks="$looks" -v deep="$deep" -v single="$single" -v goal=$goal -v exports="$exports" 'BEGIN {
    request = (b - a) / n; look = (c - a - more * request) / looks
    printf "%d exports: %.0f instructions a request, %.2f million a look (ctl why, top --batch 1, a scrape)\n", exports, request, look / 1e6
    at_deep = 100 * look / (request * deep); at_single = 100 * look / (request * single)
    printf "a look each second adds %.2f %% to the %.0f instructions of a request at depth 32 (%.0f requests a second), %.2f %% at depth 1 (%.0f)\n",
        at_deep, request, deep, at_single, single
    verdict = at_deep <= goal ? "met" : "MISSED"
    printf "goal: at most %.0f %% at depth 32: %s\n", goal, verdict
    exit verdict != "met"
}'
