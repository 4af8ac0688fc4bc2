#!/usr/bin/env bash
# What a newcomer compares first: `headworks serve disk.img` beside `nbdkit file disk.img`, both with their defaults.
#
#   benches/defaults.sh [--size 2G] [--dir .] [--rounds 3] [--seconds 4] [--rw randread] [--bs 4k] [--iodepth 32]
#
# A file of random bytes. Cold: the kernel's caches are dropped, a server starts, and is measured for so many seconds. Warm: all of
# the file was read through it. The servers alternate; each line has the IOPS of both and ratios, the last ones the medians of the
# ratios beside their goals. With root, to drop caches.
. "$(dirname "$0")/lib.sh"

size=2G dir=. rounds=3 seconds=4 rw=randread bs=4k depth=32
while [ $# -gt 0 ]; do
    case $1 in
    --size) size=$2 && shift ;;
    --dir) dir=$2 && shift ;;
    --rounds) rounds=$2 && shift ;;
    --seconds) seconds=$2 && shift ;;
    --rw) rw=$2 && shift ;;
    --bs) bs=$2 && shift ;;
    --iodepth) depth=$2 && shift ;;
    *) usage ;;
    esac
    shift
done

image=$dir/headworks-defaults.img socket=$SCRATCH/sock uri="nbd+unix:///?socket=$SCRATCH/sock"
LEFTOVERS+=("$image")
head -c "$(numfmt --from=iec "$size")" /dev/urandom >"$image"
sync

cold_start() { # ours|nbdkit
    rm -f "$socket"
    echo 3 >/proc/sys/vm/drop_caches || exit 1
    case $1 in
    ours) start "$socket" "$HEADWORKS" serve "$image" -U "$socket" ;;
    nbdkit) start "$socket" nbdkit -f -U "$socket" file "$image" ;;
    esac
}
iops() {
    "$HEADWORKS" bench --uri "$uri" --overwrite --rw "$rw" --bs "$bs" --iodepth "$depth" --runtime "${seconds}s" --json |
        sed -n 's/^ *"iops": \([0-9]*\).*/\1/p'
}

machine
declare -A of
for round in $(seq "$rounds"); do
    for server in ours nbdkit; do
        cold_start $server
        of[$server,cold]=$(iops)
        nbdcopy "$uri" null:
        of[$server,warm]=$(iops)
        stop_all
    done
    for state in cold warm; do
        echo "$state ${of[ours,$state]} ${of[nbdkit,$state]}" >>"$SCRATCH/ratios"
    done
    awk -v n="$round" -v a="${of[ours,cold]}" -v b="${of[nbdkit,cold]}" -v c="${of[ours,warm]}" -v d="${of[nbdkit,warm]}" 'BEGIN {
        printf "round %d: cold %d beside %d, %.2f; warm %d beside %d, %.2f\n", n, a, b, a / b, c, d, c / d }'
done

goal() { # cold|warm GOAL
    awk -v state="$1" '$1 == state { print $2 / $3 }' "$SCRATCH/ratios" | sort -n | awk -v state="$1" -v goal="$2" '
        { ratio[NR] = $1 }
        END {
            median = (ratio[int((NR + 1) / 2)] + ratio[int(NR / 2) + 1]) / 2
            printf "%s: %.2f (%.2f-%.2f), goal %s: %s\n", state, median, ratio[1], ratio[NR], goal, (median >= goal ? "met" : "MISSED")
        }'
}
goal cold 0.9
goal warm 1.5
