#!/usr/bin/env bash
# How late the answers of modelled disks are: `model:` served to one client, by disk and depth.
#
#   benches/model.sh [--seconds N] [DISK...]
#
# The log of the server has the figures: when each answer was due by the model, and when it came. A drive with few commands says
# what a wake-up costs, nvme at depth 32 what the server does in a second.
. "$(dirname "$0")/lib.sh"

seconds=5 disks=()
while [ $# -gt 0 ]; do
    case $1 in
    --seconds) seconds=$2 && shift 2 ;;
    -*) usage ;;
    *) disks+=("$1") && shift ;;
    esac
done
[ ${#disks[@]} -gt 0 ] || disks=(hdd-7200 sata cloud-gp3 nvme)

for disk in "${disks[@]}"; do
    for depth in 1 32; do
        "$HEADWORKS" serve --cache 0 -U "$SCRATCH/disk" "model:profile=$disk,of=null:size=100G" >/dev/null 2>"$SCRATCH/log" &
        server=$!
        PIDS+=("$server")
        until [ -S "$SCRATCH/disk" ]; do sleep 0.01; done
        "$HEADWORKS" bench --uri "nbd+unix:///?socket=$SCRATCH/disk" --rw randread --bs 4k --iodepth "$depth" --runtime "$seconds" >/dev/null || exit 1
        kill "$server"
        wait "$server"
        rm -f "$SCRATCH/disk"
        sed -n "s/.*model $disk: \\(.*commands.*\\)/$disk, depth $depth: \\1/p" "$SCRATCH/log" | tail -n 1
    done
done
