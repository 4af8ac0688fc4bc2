#!/usr/bin/env bash
# The C API beside the library's handle, and fio's external engine beside fio's io_uring.
#
#   benches/c-api.sh [--rounds 5] [--runtime 2s]
#
# Each round takes every program once, one after the other, and gives a ratio; the last lines have the median of the ratios, their range, and the
# goal. The handle and the C API read 4 KiB of a null device at depth 32 with the same loop: processor time for a read, and instructions by
# `perf stat` where it counts (user mode), else by callgrind, once. The C API reads 64 KiB of the image on tmpfs into memory that is registered, and into memory
# that is not: processor time for a read. fio reads and writes 4 KiB at depth 32, with one engine and then the other: an image of
# 256 MiB on tmpfs, and 64 MiB of one on disk that are cached (by the engine's page cache, and by the kernel's), in I/Os a second; and how much processor time fio
# takes for an I/O. Needs libheadworks_c.so and headworks-lab beside the program, and fio's headers (scripts/setup bench).
. "$(dirname "$0")/lib.sh"

rounds=5 runtime=2s
rounds_and_runtime "$@"
folder=$(dirname "$HEADWORKS")
profile=$(basename "$folder")
for file in "$folder/libheadworks_c.so" "$LAB"; do
    [ -e "$file" ] || {
        echo "c-api: error: there is no $file: cargo build --profile $profile -p headworks-cli -p headworks-lab -p headworks-c" >&2
        exit 1
    }
done
cc -std=gnu11 -O2 -I"$root/crates/headworks-c/include" "$root/benches/c_api.c" -o "$SCRATCH/c_api" -L"$folder" -lheadworks_c "-Wl,-rpath,$folder" || exit 1
"$root/scripts/fio-engine" "$SCRATCH/engine.so" "$folder" || exit 1

ios=4000000
of_handle() { "$LAB" run handle --ios "$1"; }
of_c_api() { "$SCRATCH/c_api" null:size=1G "$1" 32; }
cpu_of() { # of_handle|of_c_api: nanoseconds for a read
    local said
    said=$("$1" $ios) || exit 1
    sed -n 's/.* reads, \([0-9.]*\) ns of CPU each/\1/p' <<<"$said"
}

counts_by_perf() { perf stat -e instructions:u true 2>&1 | grep -q '^ *[0-9][0-9,.]* *instructions'; }
perf_of() { # PROGRAM ARGUMENTS...: instructions
    perf stat -x , -e instructions:u "$@" 2>&1 >/dev/null | awk -F , '/instructions/ { print $1 }'
}
callgrind_of() { # PROGRAM ARGUMENTS...
    valgrind --tool=callgrind --callgrind-out-file=/dev/null "$@" 2>&1 >/dev/null | sed -n 's/.*Collected : //p'
}
if command -v perf >/dev/null && counts_by_perf; then
    count=perf_of few=1000000 many=3000000
else
    count=callgrind_of few=10000 many=40000
fi
each() { # handle|c_api: instructions of a read
    local short long
    if [ "$1" = handle ]; then
        short=$($count "$LAB" run handle --ios $few) long=$($count "$LAB" run handle --ios $many)
    else
        short=$($count "$SCRATCH/c_api" null:size=1G $few 32) long=$($count "$SCRATCH/c_api" null:size=1G $many 32)
    fi
    awk -v a="$short" -v b="$long" -v n=$((many - few)) 'BEGIN { printf "%.1f", (b - a) / n }'
}

tmpfs=$(mktemp /dev/shm/headworks-c-api.XXXXXX) disk=$(mktemp "$root/target/c-api.XXXXXX") || exit 1
fill "$tmpfs" 256
fill "$disk" 256
of_memory() { # registered|copied: nanoseconds for a read of 64 KiB
    "$SCRATCH/c_api" "file:path=$tmpfs" 50000 16 "$1" 65536 | sed -n 's/.* reads, \([0-9.]*\) ns of CPU each/\1/p'
}
job() { # CELL ENGINE OPTIONS...
    local cell=$1 engine=$2
    shift 2
    fio --name=a --bs=4k --iodepth=32 --iodepth_batch_submit=8 --iodepth_batch_complete_min=1 --iodepth_batch_complete_max=32 \
        --gtod_reduce=1 --time_based --runtime="$runtime" --norandommap --randrepeat=1 --output-format=json --output="$SCRATCH/fio.json" "$@" || exit 1
    python3 -c 'import json, sys
job = json.load(open(sys.argv[1]))["jobs"][0]
assert job["error"] == 0, job["error"]
rate = job["read"]["iops"] + job["write"]["iops"]
total = job["read"]["total_ios"] + job["write"]["total_ios"]
cpu = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] * 1e6
print(*sys.argv[2:], round(rate), round(cpu / total))' "$SCRATCH/fio.json" "$cell" "$engine" | tee -a "$RESULTS"
}
ours=(--ioengine="external:$SCRATCH/engine.so")
theirs=(--ioengine=io_uring)

machine
fio --version
for round in $(seq "$rounds"); do
    echo "round $round"
    for one in handle c_api; do echo "cpu $one $(cpu_of of_$one) 0" | tee -a "$RESULTS"; done
    if [ $count = perf_of ] || [ "$round" -eq 1 ]; then
        for one in handle c_api; do echo "instructions $one $(each $one) 0" | tee -a "$RESULTS"; done
    fi
    for one in registered copied; do echo "memory $one $(of_memory $one) 0" | tee -a "$RESULTS"; done
    for rw in randread randwrite; do
        job "tmpfs-$rw" ours "${ours[@]}" --spec="file:path=$tmpfs" --rw=$rw --size=256M
        job "tmpfs-$rw" theirs "${theirs[@]}" --filename="$tmpfs" --rw=$rw --size=256M
    done
    # So little of the cache is dirty that neither side throttles the writer or writes out before it is old.
    job cached-randwrite ours "${ours[@]}" --spec="file:path=$disk" --cache=1G --rw=randwrite --size=64M
    job cached-randwrite theirs "${theirs[@]}" --filename="$disk" --direct=0 --rw=randwrite --size=64M
done

python3 - "$RESULTS" <<'END'
import statistics, sys
runs = {}
for cell, side, rate, cpu in (line.split() for line in open(sys.argv[1])):
    runs.setdefault(cell, {}).setdefault(side, []).append((float(rate), float(cpu)))

def ratio(name, ratios, goal=None, most=False):
    median = statistics.median(ratios)
    met = "" if goal is None else f", goal at {'most' if most else 'least'} {goal}: {'met' if (median <= goal if most else median >= goal) else 'MISSED'}"
    print(f"{name}: {median:.3f} ({min(ratios):.3f}-{max(ratios):.3f}){met}")

def pairs(cell, one, other):
    return list(zip(runs[cell][one], runs[cell][other]))

for cell, what in (("cpu", "processor time"), ("instructions", "instructions")):
    ratio(f"C API over handle, {what}, null device, depth 32", [c[0] / h[0] for c, h in pairs(cell, "c_api", "handle")], 1.15, most=True)
ratio("C API, 64 KiB on tmpfs, registered memory over copied, processor time", [r[0] / c[0] for r, c in pairs("memory", "registered", "copied")])
for cell, goal in (("tmpfs-randread", 1.3), ("tmpfs-randwrite", 1.3), ("cached-randwrite", 2)):
    both = pairs(cell, "ours", "theirs")
    ratio(f"fio, {cell}, I/Os a second of io_uring's", [a[0] / b[0] for a, b in both], goal)
    ratio(f"fio, {cell}, io_uring's processor time of ours", [b[1] / a[1] for a, b in both])
END
