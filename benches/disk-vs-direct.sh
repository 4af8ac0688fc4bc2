#!/usr/bin/env bash
# What Headworks costs above the bare disk: the same requests by a direct io_uring loop (fio), by Headworks in process,
# and through NBD, in turn on one file with O_DIRECT.
#
#   benches/disk-vs-direct.sh [--rounds 5] [--runtime 2s] [--size 2048] [--file PATH] [--cell RW-BS-DEPTH]... [--json FILE]
#
# Disks differ from minute to minute: read the spread before the ratio. CPU per I/O is of the process that owns the
# disk requests: fio's job, the bench, the server. --size is in MiB; the file is made under target/ unless named.
. "$(dirname "$0")/lib.sh"

rounds=5 runtime=2s size=2048 file=$root/target/bench-disk.img cells=() json=
while [ $# -gt 0 ]; do
    case $1 in
    --rounds) rounds=$2 ;;
    --runtime) runtime=$2 ;;
    --size) size=$2 ;;
    --file) file=$2 ;;
    --cell) cells+=("$2") ;;
    --json) json=$2 ;;
    *) usage ;;
    esac
    shift 2
done
[ ${#cells[@]} -gt 0 ] || cells=(randread-4k-1 randread-4k-32 randwrite-4k-1 randwrite-4k-32 randread-64k-16 read-1M-4 write-1M-4)
if [ -e "$file" ]; then
    echo "disk-vs-direct: error: $file exists, and would be overwritten: name another by --file" >&2
    exit 1
fi
fill "$file" "$size"
sync "$file"

per_io() { # SECONDS TOTAL
    awk -v s="$1" -v n="$2" 'BEGIN { print n ? s * 1e6 / n : 0 }'
}

direct() { # CELL RW BS DEPTH
    fio --name=direct --filename="$file" --ioengine=io_uring --direct=1 --rw="$2" --bs="$3" --iodepth="$4" --thread \
        --time_based --runtime="$runtime" --output-format=json >"$SCRATCH/run.json" || exit 1
    local iops total cpu
    # fio's own measure of its job's time, without what fio takes to start.
    read -r iops total cpu <<<"$(python3 -c 'import json, sys
job = json.load(open(sys.argv[1]))["jobs"][0]
print(job["read"]["iops"] + job["write"]["iops"], job["read"]["total_ios"] + job["write"]["total_ios"],
      (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1000)' "$SCRATCH/run.json")"
    local group
    for group in in-process nbd; do
        result $group "$1" direct unpinned "$iops" "$(per_io "$cpu" "$total")"
    done
}

in_process() { # CELL RW BS DEPTH
    local iops total cpu TIMEFORMAT='%U %S'
    { time "$HEADWORKS" bench --device "file:path=$file,direct=on" --rw "$2" --bs "$3" --iodepth "$4" --runtime "$runtime" \
        --json >"$SCRATCH/run.json" 2>"$SCRATCH/run.err"; } 2>"$SCRATCH/time" || { cat "$SCRATCH/run.err" >&2; exit 1; }
    read -r iops total <<<"$(iops_of "$SCRATCH/run.json")"
    cpu=$(awk '{ print $1 + $2 }' "$SCRATCH/time")
    result in-process "$1" headworks unpinned "$iops" "$(per_io "$cpu" "$total")"
}

over_nbd() { # CELL RW BS DEPTH
    local iops total before after
    start "$SCRATCH/sock" "$HEADWORKS" serve --cache 0 -U "$SCRATCH/sock" "file:path=$file,direct=on"
    before=$(cpu_ticks "$STARTED")
    "$HEADWORKS" bench --uri "nbd+unix:///?socket=$SCRATCH/sock" --overwrite --rw "$2" --bs "$3" --iodepth "$4" --runtime "$runtime" \
        --json >"$SCRATCH/run.json" || exit 1
    after=$(cpu_ticks "$STARTED")
    stop_all
    read -r iops total <<<"$(iops_of "$SCRATCH/run.json")"
    result nbd "$1" headworks unpinned "$iops" \
        "$(per_io "$(awk -v t=$((after - before)) -v hz="$(getconf CLK_TCK)" 'BEGIN { print t / hz }')" "$total")"
}

machine
printf 'disk: %s; each figure: %s runs of %s, in turn, on one file of %s MiB\n' \
    "$(df --output=source,fstype "$file" | tail -n 1 | tr -s ' ')" "$rounds" "$runtime" "$size"
for cell in "${cells[@]}"; do
    IFS=- read -r rw bs depth <<<"$cell"
    for ((round = 0; round < rounds; round++)); do
        direct "$cell" "$rw" "$bs" "$depth"
        in_process "$cell" "$rw" "$bs" "$depth"
        over_nbd "$cell" "$rw" "$bs" "$depth"
    done
done
echo >&2
python3 "$root/benches/ratios.py" "$RESULTS" --ours headworks ${json:+--json "$json"}
