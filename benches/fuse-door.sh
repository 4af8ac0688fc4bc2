#!/usr/bin/env bash
# Exports as files: FUSE by headworks beside nbdfuse, which is a client of the same server.
#
#   benches/fuse-door.sh [--rounds 5] [--runtime 2] [--cache 0]
#
# An image of 256 MiB on tmpfs, read by fio with O_DIRECT: 4 KiB at random, at depth 1 and at depth 16 by four jobs, and 1 MiB in sequence.
# The files alternate. Each line has the I/Os a second, and thousand I/Os for each processor second of the servers behind the file; the last ones are the medians of the
# ratios to nbdfuse with their spread, and whether each reaches its goal.
. "$(dirname "$0")/lib.sh"

rounds=5 runtime=2 cache=0
while [ $# -gt 0 ]; do
    case $1 in
    --rounds) rounds=$2 && shift ;;
    --runtime) runtime=$2 && shift ;;
    --cache) cache=$2 && shift ;;
    *) usage ;;
    esac
    shift
done
for program in nbdfuse fio nbdinfo; do
    command -v "$program" >/dev/null || { echo "fuse-door: error: there is no $program: apt-get install libnbd-bin nbdfuse fio" >&2; exit 1; }
done
[ -w /dev/fuse ] || command -v fusermount3 >/dev/null || { echo "fuse-door: error: nothing can be mounted here" >&2; exit 1; }

image=/dev/shm/headworks-fuse-door.img
fill "$image" 256
mkdir "$SCRATCH/ours" "$SCRATCH/theirs"
start "$SCRATCH/sock" "$HEADWORKS" serve disk="file:path=$image" -U "$SCRATCH/sock" --cache "$cache" --fuse "$SCRATCH/ours"
server=$STARTED
nbdfuse "$SCRATCH/theirs/disk" "nbd+unix:///disk?socket=$SCRATCH/sock" &
peer=$!
PIDS=("$peer" "$server")
limit=$((SECONDS + 20))
until [ -e "$SCRATCH/ours/disk" ] && [ -e "$SCRATCH/theirs/disk" ]; do
    [ $SECONDS -lt $limit ] || { echo "fuse-door: error: a file is not mounted" >&2; exit 1; }
    sleep 0.05
done

ticks() { # PID... , all together
    local sum=0 pid
    for pid in "$@"; do sum=$((sum + $(cpu_ticks "$pid"))); done
    echo "$sum"
}

measured() { # JOB WHOSE FIO-OPTIONS...
    local job=$1 whose=$2 before after
    shift 2
    local of=("$server")
    [ "$whose" = ours ] || of+=("$peer")
    before=$(ticks "${of[@]}")
    fio --name="$job" --filename="$SCRATCH/$whose/disk" --direct=1 --ioengine=libaio --time_based --runtime="$runtime" \
        --group_reporting --output-format=json "$@" >"$SCRATCH/json" || { cat "$SCRATCH/json" >&2; exit 1; }
    after=$(ticks "${of[@]}")
    python3 -c 'import json, sys
text = open(sys.argv[1]).read()
run = json.loads(text[text.index("{"):])["jobs"][0]
assert run["error"] == 0
seconds = int(sys.argv[4]) / 100
print(*sys.argv[2:4], round(run["read"]["iops"]), round(run["read"]["total_ios"] / max(seconds, 0.01) / 1000))' \
        "$SCRATCH/json" "$job" "$whose" $((after - before)) | tee -a "$RESULTS"
}

machine
nbdfuse --version
for round in $(seq "$rounds"); do
    echo "round $round"
    for whose in ours theirs; do
        measured random-1 $whose --rw=randread --bs=4k --iodepth=1
        measured random-16x4 $whose --rw=randread --bs=4k --iodepth=16 --numjobs=4
        measured sequential-1m $whose --rw=read --bs=1m --iodepth=1
    done
done

python3 - "$RESULTS" <<'END'
import statistics, sys
runs = {}
for job, whose, *figures in (line.split() for line in open(sys.argv[1])):
    runs.setdefault(job, {}).setdefault(whose, []).append([float(figure) for figure in figures])
for job, sides in runs.items():
    for whose, all in sides.items():
        rates = [figures[0] for figures in all]
        print(f"{job}, {whose}: {statistics.median(rates):.0f} I/Os a second ({min(rates):.0f}-{max(rates):.0f})")
    for place, what in enumerate(("I/Os a second", "I/Os for each processor second")):
        ratios = [a[place] / max(b[place], 1) for a, b in zip(sides["ours"], sides["theirs"])]
        median, goal = statistics.median(ratios), 1.5
        verdict = f", goal at least {goal}: {'met' if median >= goal else 'MISSED'}" if place == 0 else ""
        print(f"{job}, {what} of nbdfuse's: {median:.2f} ({min(ratios):.2f}-{max(ratios):.2f}){verdict}")
END
