#!/usr/bin/env bash
# Disks of virtual machines by vhost-user-blk: headworks beside qemu-storage-daemon, with a driver that needs no virtual machine.
#
#   benches/vhost-user.sh [--rounds 5] [--runtime 1s]
#
# Reads of 4 KiB of a null device, where the driver polls or sleeps, and reads and writes at random of 256 MiB: an image on tmpfs, one on disk that
# is cached (by our page cache, and by the kernel's), and an overlay on such a one (ours, and a qcow2 file), written before. The servers
# alternate. QEMU's null device leaves the memory of a read as it is (read-zeroes=off), ours fills it. The same once more over NBD, by the same client
# program, for ours. Each line has I/Os a second, the server's nanoseconds of processor time for one, and thousand I/Os for each processor second of server
# and driver together; the last ones are the medians of our ratios beside their goals, and of the two doors of ours. Two processors: driver and
# server poll on one each.
. "$(dirname "$0")/lib.sh"

rounds=5 runtime=1s
rounds_and_runtime "$@"
command -v qemu-storage-daemon >/dev/null || { echo "vhost-user: error: there is no qemu-storage-daemon: apt-get install qemu-system-common" >&2; exit 1; }

# Each server locks its own, and has its overlay on a base of its own.
tmpfs=/dev/shm/headworks-vhost.img disk=$root/target/headworks-vhost.img
mkdir -p "$root/target"
for file in "$tmpfs" "$tmpfs.qsd" "$disk" "$disk.qsd" "$disk.base" "$disk.base.qsd"; do fill "$file" 256; done
LEFTOVERS+=("$disk.hwo" "$disk.qcow2")
rm -f "$disk.hwo" "$disk.qcow2"
"$HEADWORKS" image create --base "$disk.base" "$disk.hwo" >/dev/null &&
    qemu-img create -q -f qcow2 -b "$disk.base.qsd" -F raw "$disk.qcow2" && qemu-img convert -n -f raw -O qcow2 "$disk" "$disk.qcow2" || exit 1

declare -A process
qsd() { # NAME NODE-OPTIONS
    qemu-storage-daemon --object iothread,id=t0 --blockdev "$2,node-name=n" \
        --export "vhost-user-blk,id=e,node-name=n,addr.type=unix,addr.path=$SCRATCH/qsd-$1.sock,writable=on,num-queues=2,iothread=t0" >"$SCRATCH/qsd-$1.log" 2>&1 &
    PIDS+=("$!")
    process[qsd-$1]=$!
    until [ -S "$SCRATCH/qsd-$1.sock" ]; do
        kill -0 "$!" 2>/dev/null || { cat "$SCRATCH/qsd-$1.log" >&2; exit 1; }
        sleep 0.05
    done
}
ours() { # SERVE-OPTIONS... -- NAME=SPEC...
    local name names=() options=() socket
    while [ "$1" != -- ]; do options+=("$1") && shift; done
    shift
    for name; do
        names+=("${name%%=*}")
        options+=("$name" --vhost-user "${name%%=*}=$SCRATCH/ours-${name%%=*}.sock")
    done
    socket=$SCRATCH/ours-${names[0]}.nbd
    start "$socket" "$HEADWORKS" serve "${options[@]}" -U "$socket"
    for name in "${names[@]}"; do
        process[ours-$name]=$STARTED
        [ "$name" = "${names[0]}" ] || ln -s "$socket" "$SCRATCH/ours-$name.nbd"
    done
}
ours --cache 0 -- null=null:size=1G "tmpfs=file:path=$tmpfs"
ours -- "cached=file:path=$disk" "overlay=overlay:path=$disk.hwo"
qsd null null-co,size=1073741824,read-zeroes=off
qsd tmpfs "driver=file,filename=$tmpfs.qsd"
qsd cached "driver=file,filename=$disk.qsd"
qsd overlay "driver=qcow2,file.driver=file,file.filename=$disk.qcow2"
# All of it is there, and the overlays have all of it themselves.
for device in cached overlay; do
    uri="nbd+unix:///$device?socket=$SCRATCH/ours-$device.nbd"
    nbdcopy --no-extents "$disk" "$uri" && nbdcopy "$uri" null: || exit 1
done
cat "$disk.qsd" "$disk.qcow2" >/dev/null

# Over NBD the server's time is that of its process.
measured() { # JOB SERVER DEVICE BENCH-OPTIONS...
    local job=$1 server=$2 device=$3 uri ticks=0
    shift 3
    uri="vhost-user+unix:///?socket=$SCRATCH/$server-$device.sock"
    case $job in nbd-*) uri="nbd+unix:///$device?socket=$SCRATCH/$server-$device.nbd" && ticks=$(cpu_ticks "${process[$server-$device]}") ;; esac
    "$HEADWORKS" bench --uri "$uri" --runtime "$runtime" "$@" --json >"$SCRATCH/json" || exit 1
    iops_of "$SCRATCH/json" >/dev/null || exit 1
    ticks=$(($(cpu_ticks "${process[$server-$device]}") - ticks))
    python3 -c 'import json, sys
run, ns = json.load(open(sys.argv[1])), int(sys.argv[2]) * 1e7
cpu = run.get("device_cpu_ns_per_io", ns / run["ios"])
both = run["ios_per_cpu_second"] if "ios_per_cpu_second" in run else 1e9 / (cpu + run["client_cpu_ns_per_io"])
print(*sys.argv[3:], round(run["iops"]), round(cpu), round(both / 1000))' "$SCRATCH/json" "$ticks" "$job" "$server" | tee -a "$RESULTS"
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
        for door in "" nbd-; do
            # QEMU 7.2 ends by an assertion where a node has both.
            [ "$server$door" != qsdnbd- ] || continue
            [ -z "$door" ] || measured nbd-null-32 $server null --rw randread --iodepth 32
            for device in tmpfs cached overlay; do
                measured $door$device-read $server $device --rw randread --iodepth 32
                measured $door$device-write $server $device --overwrite --rw randwrite --iodepth 32
            done
        done
    done
done

python3 - "$RESULTS" <<'END'
import statistics, sys
runs = {}
for job, server, *figures in (line.split() for line in open(sys.argv[1])):
    runs.setdefault(job, {}).setdefault(server, []).append([float(figure) for figure in figures])

def ratio(name, ratios, goal=None):
    median = statistics.median(ratios)
    met = f", goal at least {goal}: {'met' if median >= goal else 'MISSED'}" if goal else ""
    print(f"{name}: {median:.2f} ({min(ratios):.2f}-{max(ratios):.2f}){met}")

for job, goal in (("poll-1", 3), ("poll-32", 1.5), ("poll-64", 1.6), ("sleep-1", 3), ("sleep-32", 1.2)):
    ratio(f"{job}, I/Os a second of the peer's", [a[0] / b[0] for a, b in zip(runs[job]["ours"], runs[job]["qsd"])], goal)
for job in ("tmpfs-read", "tmpfs-write"):
    ratio(f"{job}, the peer's processor time of ours", [b[1] / a[1] for a, b in zip(runs[job]["ours"], runs[job]["qsd"])], 8)
for job in runs:
    if not job.startswith("nbd-"):
        ratio(f"{job}, I/Os for each processor second of the peer's", [a[2] / b[2] for a, b in zip(runs[job]["ours"], runs[job]["qsd"])], 3)
# What the door is worth, to a server that has both.
runs["null-32"] = runs["sleep-32"]
for job in [job.removeprefix("nbd-") for job in runs if job.startswith("nbd-")]:
    both = zip(runs[job]["ours"], runs[f"nbd-{job}"]["ours"])
    ratio(f"{job}, I/Os for each processor second of ours over NBD", [a[2] / b[2] for a, b in both])
END
