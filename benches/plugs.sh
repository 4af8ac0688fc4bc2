#!/usr/bin/env bash
# Seed 004's job on a disk of this machine: sequential reads of 4 KiB, 128 in flight, sixteen at a time and one by one.
#
#   benches/plugs.sh [--rounds 5] [--runtime 2s] [--size 2048] [--file PATH]
#
# fio's io_uring has the kernel's plug, fio's external engine (fio/engine.c) ours; both read one file with O_DIRECT, in turn. The disk
# counts the requests that reach it (/sys/block/DISK/stat): MERGED is the part of the reads that made none of their own, 15 of 16 when
# batches stay whole. KB/s are those of this disk; the seed's stand beside them. Medians of the rounds, and their range. --size is in
# MiB; the file is made under target/ unless named. Needs libheadworks_c.so beside the program, and fio's headers (scripts/setup bench).
. "$(dirname "$0")/lib.sh"

rounds=5 runtime=2s size=2048 file=$root/target/bench-plugs.img
while [ $# -gt 0 ]; do
    case $1 in
    --rounds) rounds=$2 ;;
    --runtime) runtime=$2 ;;
    --size) size=$2 ;;
    --file) file=$2 ;;
    *) usage ;;
    esac
    shift 2
done
if [ -e "$file" ]; then
    echo "plugs: error: $file exists, and would be overwritten: name another by --file" >&2
    exit 1
fi
"$root/scripts/fio-engine" "$SCRATCH/engine.so" "$(dirname "$HEADWORKS")" || exit 1
fill "$file" "$size"
sync "$file"
disk=$(basename "$(readlink -f "/sys/dev/block/$(stat -c '%Hd:%Ld' "$file")")")
counts=/sys/class/block/$disk/stat
if ! [ -r "$counts" ]; then
    echo "plugs: error: $file is on no disk that counts its requests" >&2
    exit 1
fi

job() { # SIDE BATCH ENGINE OPTIONS...
    local side=$1 batch=$2 before after
    shift 2
    before=$(awk '{ print $1 }' "$counts")
    fio --name=plugs --rw=read --bs=4k --iodepth=128 --iodepth_batch_submit="$batch" --iodepth_batch_complete_min="$batch" \
        --iodepth_batch_complete_max="$batch" --size="${size}M" --time_based --runtime="$runtime" --output-format=json \
        --output="$SCRATCH/fio.json" "$@" >/dev/null || exit 1
    after=$(awk '{ print $1 }' "$counts")
    python3 -c 'import json, sys
job = json.load(open(sys.argv[1]))["jobs"][0]
assert job["error"] == 0, job["error"]
reads, side, batch, requests = job["read"]["total_ios"], sys.argv[2], sys.argv[3], int(sys.argv[4])
print(side, batch, round(job["read"]["iops"] * 4.096), round(1 - requests / reads, 4))' \
        "$SCRATCH/fio.json" "$side" "$batch" $((after - before)) | tee -a "$RESULTS"
}

machine
fio --version
printf 'disk: %s, scheduler %s\n' "$disk" "$(sed 's/.*\[\(.*\)\].*/\1/' "/sys/class/block/$disk/queue/scheduler" 2>/dev/null)"
for ((round = 0; round < rounds; round++)); do
    for batch in 1 16; do
        job kernel "$batch" --ioengine=io_uring --direct=1 --filename="$file"
        job headworks "$batch" --ioengine="external:$SCRATCH/engine.so" --spec="file:path=$file,direct=on"
    done
done

python3 - "$RESULTS" <<'END'
import statistics, sys
runs = {}
for side, batch, rate, merged in (line.split() for line in open(sys.argv[1])):
    runs.setdefault((side, int(batch)), []).append((float(rate), float(merged)))

def spread(values, form="{:.0f}"):
    shown = [form.format(value) for value in (statistics.median(values), min(values), max(values))]
    return f"{shown[0]} ({shown[1]}-{shown[2]})"

print("seed, virtio-blk: KB/s 283638 unmerged; 873224 (3.08 times) with 15 of 16 merged")
for side in ("kernel", "headworks"):
    for batch in (1, 16):
        rates, merged = zip(*runs[side, batch])
        print(f"{side}, batches of {batch}: KB/s {spread(rates)}, merged {spread(merged, '{:.4f}')}")
    times = [many[0] / one[0] for one, many in zip(runs[side, 1], runs[side, 16])]
    print(f"{side}, sixteen at a time by one by one: {spread(times, '{:.2f}')}")
ours = [a[0] / b[0] for a, b in zip(runs["headworks", 16], runs["kernel", 16])]
print(f"headworks by the kernel, sixteen at a time: {spread(ours, '{:.2f}')}")
merged = statistics.median(m for _, m in runs["headworks", 16])
met = merged >= 15 / 16
print(f"merged, sixteen at a time: {merged:.4f}, goal at least 0.9375: {'met' if met else 'MISSED'}")
sys.exit(0 if met else 1)
END
