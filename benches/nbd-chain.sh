#!/usr/bin/env bash
# Servers in front of another NBD server, side by side in one run: headworks (nbd:), qemu-storage-daemon (blockdev nbd) and nbdkit (plugin nbd).
#
#   benches/nbd-chain.sh [--rounds 5] [--runtime 2s] [--size 256]
#
# The server behind them all is one headworks with mem:, filled; unix sockets, 4 KiB random reads, no cache in the middle. The middle
# process has CPU 0, the client and the server behind the last CPU, for every chain alike; `direct` has no middle. Every round runs every
# chain once, in turn; medians are compared, and least and greatest are shown. Processor time is the middle process's for one read.
# Goals: 5 times the rate of qemu-storage-daemon and at most 2500 ns at depth 32; at depth 1 at least 1/2.2 of the direct rate. A goal
# that is missed prints MISSED, and the exit code is 1. --size is in MiB.
. "$(dirname "$0")/lib.sh"

rounds=5 runtime=2s size=256
while [ $# -gt 0 ]; do
    case $1 in
    --rounds) rounds=$2 ;;
    --runtime) runtime=$2 ;;
    --size) size=$2 ;;
    *) usage ;;
    esac
    shift 2
done
QSD=${QSD:-qemu-storage-daemon}
has() { command -v "$1" >/dev/null; }

machine
last_cpu=$(($(nproc) - 1))
behind=$SCRATCH/behind.sock
declare -A PID SOCKET
chains=()

chain() { # NAME COMMAND...: a middle server on CPU 0
    SOCKET[$1]=$SCRATCH/$1.sock
    start "${SOCKET[$1]}" taskset -c 0 "${@:2}"
    PID[$1]=$STARTED
    chains+=("$1")
}

start "$behind" taskset -c "$last_cpu" "$HEADWORKS" serve --cache 0 -U "$behind" "mem:size=${size}M"
SOCKET[direct]=$behind PID[direct]=$STARTED
chains+=(direct)
filled=$SCRATCH/filled
fill "$filled" "$size" && nbdcopy "$filled" "nbd+unix:///?socket=$behind" && rm -f "$filled" || exit 1

chain headworks "$HEADWORKS" serve --cache 0 -U "$SCRATCH/headworks.sock" nbd:uri="nbd+unix:///?socket=$behind"
if has "$QSD"; then
    chain qsd "$QSD" --blockdev "driver=nbd,node-name=d,server.type=unix,server.path=$behind,export=" \
        --nbd-server "addr.type=unix,addr.path=$SCRATCH/qsd.sock,max-connections=16" \
        --export type=nbd,id=e,node-name=d,name=,writable=on
else
    echo "skip: there is no $QSD: apt-get install qemu-system-common, or QSD=PATH"
fi
if has nbdkit; then
    chain nbdkit nbdkit -f -U "$SCRATCH/nbdkit.sock" nbd "socket=$behind"
else
    echo "skip: there is no nbdkit: apt-get install nbdkit"
fi

for depth in 32 1; do
    for ((round = 1; round <= rounds; round++)); do
        for name in "${chains[@]}"; do
            before=$(cpu_ticks "${PID[$name]}")
            taskset -c "$last_cpu" "$HEADWORKS" bench --uri "nbd+unix:///?socket=${SOCKET[$name]}" --rw randread --bs 4k \
                --iodepth "$depth" --runtime "$runtime" --json >"$SCRATCH/run.json" ||
                { echo "nbd-chain: error: the client failed on $name at depth $depth" >&2; exit 1; }
            after=$(cpu_ticks "${PID[$name]}")
            read -r iops total <<<"$(iops_of "$SCRATCH/run.json")"
            cpu=$(awk -v t=$((after - before)) -v hz="$(getconf CLK_TCK)" -v n="$total" 'BEGIN { print n ? t / hz * 1e9 / n : 0 }')
            result chain "$depth" "$name" split "$iops" "$cpu"
        done
    done
done
echo >&2
stop_all

python3 - "$RESULTS" <<'PY'
import collections
import statistics
import sys

runs = collections.defaultdict(list)
for line in open(sys.argv[1]):
    _, depth, name, _, iops, cpu = line.rstrip("\n").split("\t")
    runs[int(depth), name].append((float(iops), float(cpu)))
median = lambda depth, name, column: statistics.median(run[column] for run in runs[depth, name])
print(f"{'depth':>5}  {'chain':10} {'k/s':>7}  {'least to greatest':>17}  {'ns of the middle':>16}")
for (depth, name), all in runs.items():
    rates = [iops / 1000 for iops, _ in all]
    print(f"{depth:5}  {name:10} {statistics.median(rates):7.1f}  {min(rates):8.1f}{max(rates):9.1f}  {median(depth, name, 1):16.0f}")
missed = 0

def goal(what, found, wanted, is_met):
    global missed
    missed += not is_met
    print(f"{what}: {found}, wanted {wanted}: {'met' if is_met else 'MISSED'}")

if (32, "qsd") in runs:
    times = median(32, "headworks", 0) / median(32, "qsd", 0)
    goal("depth 32, rate over qemu-storage-daemon's", f"{times:.2f}x", "5x or more", times >= 5)
if (32, "nbdkit") in runs:
    print(f"depth 32, rate over nbdkit's: {median(32, 'headworks', 0) / median(32, 'nbdkit', 0):.2f}x")
cpu = median(32, "headworks", 1)
goal("depth 32, processor time of the middle", f"{cpu:.0f} ns", "2500 ns or less", cpu <= 2500)
slower = median(1, "direct", 0) / median(1, "headworks", 0)
goal("depth 1, direct rate over ours", f"{slower:.2f}x", "2.2x or less", slower <= 2.2)
sys.exit(1 if missed else 0)
PY
