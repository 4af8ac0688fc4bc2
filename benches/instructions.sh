#!/usr/bin/env bash
# Instructions for one I/O through the whole path in process, by callgrind: a figure that hardly depends on the machine's mood.
#
#   benches/instructions.sh [--device SPEC] [--bs 4k] [--iodepth 32] [--rw randread] [--scheduler none] [--annotate]
#   benches/instructions.sh --cached read-4k [--kept] [--iodepth 32] [--annotate]
#
# With --kept the cache's memory is of the kind that outlives the process (serve --cache-file).
# With --cached: for one call of a job of `headworks-lab run cached` (read-4k, write-4k, read-64k, write-64k), whose blocks all are
# cached, in batches of `iodepth` calls. Copies count too: a copy of 4 KiB is few instructions and much time. Not for the jobs lent-...:
# valgrind stops all threads while an owner's waits in io_uring.
# Two runs of different length: the difference of their instructions over the difference of their I/Os, so that
# start and end cancel out. --annotate prints the functions that take most.
. "$(dirname "$0")/lib.sh"

device=null:size=1G bs=4k depth=32 rw=randread scheduler=none annotate= cached= kept=
while [ $# -gt 0 ]; do
    case $1 in
    --device) device=$2 && shift ;;
    --bs) bs=$2 && shift ;;
    --iodepth) depth=$2 && shift ;;
    --rw) rw=$2 && shift ;;
    --scheduler) scheduler=$2 && shift ;;
    --cached) cached=$2 && shift ;;
    --kept) kept=--kept ;;
    --annotate) annotate=yes ;;
    *) usage ;;
    esac
    shift
done

count() { # IOS: prints the instructions of a run of so many
    local job=("$BENCH" --device "$device" --rw "$rw" --bs "$bs" --iodepth "$depth" --scheduler "$scheduler" --ios "$1")
    [ -z "$cached" ] || job=("$LAB" run cached --size 64M --rounds 1 --job "$cached" --batch "$depth" --calls "$1" ${kept:+"$kept"})
    valgrind --tool=callgrind --callgrind-out-file="$SCRATCH/callgrind.$1" "${job[@]}" \
        >"$SCRATCH/run" 2>"$SCRATCH/valgrind" ||
        { cat "$SCRATCH/valgrind" >&2; return 1; }
    sed -n 's/.*Collected : //p' "$SCRATCH/valgrind"
}

machine
few=100000 many=500000 what="$device $scheduler $rw $bs depth $depth"
ios=$((many - few))
if [ -n "$cached" ]; then
    few=20000 many=120000 what="cached $cached${kept:+, kept}, batch $depth"
    # A tenth comes before as warm-up, and a run has a quarter as many large calls.
    ios=$(((many - few) * 11 / 10))
    [ "${cached#*-}" = 4k ] || ios=$((ios / 4))
fi
instructions_few=$(count $few) || exit 1
instructions_many=$(count $many) || exit 1
awk -v a="$instructions_few" -v b="$instructions_many" -v n="$ios" -v what="$what" \
    'BEGIN { printf "%s: %.1f instructions per I/O\n", what, (b - a) / n }'
[ -z "$annotate" ] || callgrind_annotate "$SCRATCH/callgrind.$many" | head -n 60
