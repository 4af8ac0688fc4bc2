#!/usr/bin/env bash
# Instructions for one I/O through the whole path in process, by callgrind: a figure that hardly depends on the machine's mood.
#
#   benches/instructions.sh [--device SPEC] [--bs 4k] [--iodepth 32] [--rw randread] [--annotate]
#
# Two runs of different length: the difference of their instructions over the difference of their I/Os, so that
# start and end cancel out. --annotate prints the functions that take most.
. "$(dirname "$0")/lib.sh"

device=null:size=1G bs=4k depth=32 rw=randread annotate=
while [ $# -gt 0 ]; do
    case $1 in
    --device) device=$2 && shift ;;
    --bs) bs=$2 && shift ;;
    --iodepth) depth=$2 && shift ;;
    --rw) rw=$2 && shift ;;
    --annotate) annotate=yes ;;
    *)
        echo "usage: $(sed -n 's/^#   //p' "$0" | head -n 1)" >&2
        exit 2
        ;;
    esac
    shift
done

# Prints "INSTRUCTIONS IOS".
count() { # SECONDS
    valgrind --tool=callgrind --callgrind-out-file="$SCRATCH/callgrind.$1" "$HEADWORKS" bench --device "$device" --rw "$rw" \
        --bs "$bs" --iodepth "$depth" --runtime "$1" --json >"$SCRATCH/run.json" 2>"$SCRATCH/valgrind" ||
        { cat "$SCRATCH/valgrind" >&2; return 1; }
    echo "$(sed -n 's/.*Collected : //p' "$SCRATCH/valgrind") $(iops_of "$SCRATCH/run.json" | cut -d' ' -f2)"
}

machine
short=$(count 1) || exit 1
long=$(count 4) || exit 1
read -r instructions_short ios_short <<<"$short"
read -r instructions_long ios_long <<<"$long"
awk -v a="$instructions_short" -v b="$instructions_long" -v n="$ios_short" -v m="$ios_long" -v what="$device $rw $bs depth $depth" 'BEGIN {
    if (m <= n) { print "instructions: error: the longer run did no more I/Os than the shorter" > "/dev/stderr"; exit 1 }
    printf "%s: %.1f instructions per I/O (%d I/Os of difference)\n", what, (b - a) / (m - n), m - n
}' || exit 1
[ -z "$annotate" ] || callgrind_annotate "$SCRATCH/callgrind.4" | head -n 60
