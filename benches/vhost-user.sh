#!/usr/bin/env bash
# Disks of virtual machines by vhost-user-blk: headworks beside qemu-storage-daemon, with a driver that needs no virtual machine.
#
#   benches/vhost-user.sh [--rounds 5] [--runtime 1s]
#
# Reads of 4 KiB of a null device, where the driver polls or sleeps, and reads and writes of an image of 256 MiB on tmpfs. The servers
# alternate. QEMU's null device leaves the memory of a read as it is (read-zeroes=off), ours fills it. Each line has I/Os a second, the
# server's nanoseconds of processor time for one, and thousand I/Os for each processor second of server and driver together; the last
# ones are the medians of our ratios beside their goals. Two processors: driver and server poll on one each.
. "$(dirname "$0")/lib.sh"

rounds=5 runtime=1s
rounds_and_runtime "$@"
command -v qemu-storage-daemon >/dev/null || { echo "vhost-user: error: there is no qemu-storage-daemon: apt-get install qemu-system-common" >&2; exit 1; }

image=/dev/shm/headworks-vhost.img
fill "$image" 256
# Each server locks its own.
fill "$image.qsd" 256

qsd() { # NAME NODE-OPTIONS
    qemu-storage-daemon --object iothread,id=t0 --blockdev "$2,node-name=n" \
        --export "vhost-user-blk,id=e,node-name=n,addr.type=unix,addr.path=$SCRATCH/qsd-$1.sock,writable=on,num-queues=2,iothread=t0" >"$SCRATCH/qsd-$1.log" 2>&1 &
    PIDS+=("$!")
    until [ -S "$SCRATCH/qsd-$1.sock" ]; do
        kill -0 "$!" 2>/dev/null || { cat "$SCRATCH/qsd-$1.log" >&2; exit 1; }
        sleep 0.05
    done
}
start "$SCRATCH/sock" "$HEADWORKS" serve null=null:size=1G image="file:path=$image" -U "$SCRATCH/sock" --cache 0 \
    --vhost-user "null=$SCRATCH/ours-null.sock" --vhost-user "image=$SCRATCH/ours-image.sock"
qsd null null-co,size=1073741824,read-zeroes=off
qsd image "driver=file,filename=$image.qsd"

measured() { # JOB SERVER DEVICE BENCH-OPTIONS...
    local job=$1 server=$2 uri="vhost-user+unix:///?socket=$SCRATCH/$2-$3.sock"
    shift 3
    "$HEADWORKS" bench --uri "$uri" --runtime "$runtime" "$@" --json >"$SCRATCH/json" || exit 1
    iops_of "$SCRATCH/json" >/dev/null || exit 1
    python3 -c 'import json, sys
run = json.load(open(sys.argv[1]))
print(*sys.argv[2:], *(round(run[key]) for key in ("iops", "device_cpu_ns_per_io")), round(run["ios_per_cpu_second"] / 1000))' \
        "$SCRATCH/json" "$job" "$server" | tee -a "$RESULTS"
}

machine
qemu-storage-daemon --version | head -n 1
for round in $(seq "$rounds"); do
    echo "round $round"
    for server in ours qsd; do
        measured poll-1 $server null --rw randread --iodepth 1 --poll
        measured poll-32 $server null --rw randread --iodepth 32 --poll
        measured poll-64 $server null --rw randread --iodepth 64 --poll
        measured sleep-1 $server null --rw randread --iodepth 1
        measured sleep-32 $server null --rw randread --iodepth 32
        measured tmpfs-read $server image --rw randread --iodepth 32
        measured tmpfs-write $server image --overwrite --rw randwrite --iodepth 32
    done
done

python3 - "$RESULTS" <<'END'
import statistics, sys
runs = {}
for job, server, *figures in (line.split() for line in open(sys.argv[1])):
    runs.setdefault(job, {}).setdefault(server, []).append([float(figure) for figure in figures])

def ratio(name, ratios, goal):
    median = statistics.median(ratios)
    print(f"{name}: {median:.2f} ({min(ratios):.2f}-{max(ratios):.2f}), goal at least {goal}: {'met' if median >= goal else 'MISSED'}")

for job, goal in (("poll-1", 3), ("poll-32", 1.5), ("poll-64", 1.6), ("sleep-1", 3), ("sleep-32", 1.2)):
    ratio(f"{job}, I/Os a second of the peer's", [a[0] / b[0] for a, b in zip(runs[job]["ours"], runs[job]["qsd"])], goal)
for job in ("tmpfs-read", "tmpfs-write"):
    ratio(f"{job}, the peer's processor time of ours", [b[1] / a[1] for a, b in zip(runs[job]["ours"], runs[job]["qsd"])], 8)
for job in runs:
    ratio(f"{job}, I/Os for each processor second of the peer's", [a[2] / b[2] for a, b in zip(runs[job]["ours"], runs[job]["qsd"])], 3)
END
