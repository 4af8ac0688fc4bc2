#!/usr/bin/env bash
# What it costs to be looked at: the null device over NBD, alone, while top, a scraper and ctl look once a second, and while a status page
# is open, which asks once a second; and, beside it in the same rounds, another binary of ours, such as one built from an older commit.
#
#   benches/watched.sh [--rounds 9] [--runtime 2s] [--before BINARY]
#
# Client and server share the first CPU, the place where a server's own cost shows most; who looks is on the last one. Every
# round runs every case once, in turn; ratios are of one round, so that what the machine does meanwhile hits both sides.
. "$(dirname "$0")/lib.sh"

rounds=9 runtime=2s before=
while [ $# -gt 0 ]; do
    case $1 in
    --rounds) rounds=$2 ;;
    --runtime) runtime=$2 ;;
    --before) before=$2 ;;
    *) usage ;;
    esac
    shift 2
done

machine
control=$SCRATCH/ctl last=$(($(nproc) - 1))
null=(serve --cache 0 --cpus 0 -U)
declare -A PID
start "$SCRATCH/plain" "$HEADWORKS" "${null[@]}" "$SCRATCH/plain" null:size=1T
PID[plain]=$STARTED
start "$SCRATCH/watched" "$HEADWORKS" "${null[@]}" "$SCRATCH/watched" --control "$control" --metrics 127.0.0.1:0 null:size=1T
PID[watched]=$STARTED
page=$(sed -n 's/^metrics: //p' "$SCRATCH/watched.log")
[ -n "$page" ] || { echo "watched: error: the server names no page of metrics" >&2; exit 1; }
start "$SCRATCH/page" "$HEADWORKS" "${null[@]}" "$SCRATCH/page" --metrics 127.0.0.1:0 null:size=1T
PID[page]=$STARTED
data=$(sed -n 's/^status page: \(.*\)/\1status.json/p' "$SCRATCH/page.log")
cases=(plain watched page)
if [ -n "$before" ]; then
    start "$SCRATCH/before" "$before" "${null[@]}" "$SCRATCH/before" null:size=1T
    PID[before]=$STARTED
    cases=(before plain watched page)
fi

WATCHERS=()
ask_each_second() { # URL
    taskset -c "$last" python3 -c 'import sys, time, urllib.request
while True:
    urllib.request.urlopen(sys.argv[1]).read()
    time.sleep(1)' "$1" &
    WATCHERS+=($!)
}
watch_it() {
    taskset -c "$last" "$HEADWORKS" top "$control" --batch 1000 --interval 1s >"$SCRATCH/top" 2>&1 &
    WATCHERS+=($!)
    ask_each_second "$page"
    (while :; do taskset -c "$last" "$HEADWORKS" ctl "$control" stats >/dev/null && sleep 1; done) &
    WATCHERS+=($!)
}
unwatch() {
    [ ${#WATCHERS[@]} -eq 0 ] || { kill "${WATCHERS[@]}" && wait "${WATCHERS[@]}"; } 2>/dev/null
    WATCHERS=()
}
trap 'unwatch; cleanup' EXIT

measure() { # CASE RW DEPTH
    local json=$SCRATCH/run.json before_ticks ticks iops ios
    case $1 in
    watched) watch_it ;;
    page) ask_each_second "$data" ;;
    esac
    before_ticks=$(cpu_ticks "${PID[$1]}")
    taskset -c 0 "$HEADWORKS" bench --uri "nbd+unix:///?socket=$SCRATCH/$1" --overwrite --rw "$2" --bs 4k --iodepth "$3" \
        --runtime "$runtime" --json >"$json" || exit 1
    ticks=$(($(cpu_ticks "${PID[$1]}") - before_ticks))
    unwatch
    read -r iops ios <<<"$(iops_of "$json")" || exit 1
    result null "$2-4k-$3" "$1" same "$iops" "$(awk -v t="$ticks" -v n="$ios" 'BEGIN { print t * 10000 / n }')"
}

for ((round = 0; round < rounds; round++)); do
    for cell in "randread 32" "randwrite 32" "randread 1"; do
        # shellcheck disable=SC2086 # two words
        for case in "${cases[@]}"; do measure "$case" $cell; done
    done
done
echo >&2
python3 - "$RESULTS" <<'PY'
import collections, statistics, sys

runs = collections.defaultdict(list)
for line in open(sys.argv[1]):
    _, cell, case, _, iops, cpu = line.split("\t")
    runs[cell, case].append((float(iops), float(cpu)))
row = "{:15} {:8} {:>22}  {:>20}  {}".format
print(row("cell", "case", "k IOPS (least-most)", "server us CPU", "ratio to plain, round by round: median (least-most)"))
for (cell, case), found in runs.items():
    iops, cpu = [one[0] / 1000 for one in found], [one[1] for one in found]
    ratios = [one[0] / plain[0] for one, plain in zip(found, runs[cell, "plain"])]
    said = "" if case == "plain" else "{:.3f} ({:.3f}-{:.3f})".format(statistics.median(ratios), min(ratios), max(ratios))
    span = lambda all, form: form.format(statistics.median(all), min(all), max(all))
    print(row(cell, case, span(iops, "{:.0f} ({:.0f}-{:.0f})"), span(cpu, "{:.3f} ({:.3f}-{:.3f})"), said))
PY
