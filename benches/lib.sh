#!/usr/bin/env bash
# What the benches share: starting servers, running one measurement, and the file of results.
#
# A result is one line of tabs: GROUP CELL SERVER PLACEMENT IOPS CPU, where CPU is the processor time in
# microseconds that one I/O cost on the server's side. benches/ratios.py makes the tables of them.
set -u -o pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
HEADWORKS=${HEADWORKS:-$root/target/dist/headworks}
[ -x "$HEADWORKS" ] || { echo "$(basename "$0"): error: there is no $HEADWORKS: make build PROFILE=dist" >&2; exit 1; }
# What `headworks bench` runs, for those that count its instructions, and the experiments; only benches that run one need it.
BENCH=$(dirname "$HEADWORKS")/headworks-bench
LAB=${LAB:-$(dirname "$HEADWORKS")/headworks-lab}

SCRATCH=$(mktemp -d /tmp/hw-bench.XXXXXX) || exit 1
RESULTS=$SCRATCH/results
: >"$RESULTS"
PIDS=()
LEFTOVERS=() # files elsewhere, to be removed in the end

cleanup() {
    [ ${#PIDS[@]} -eq 0 ] || kill "${PIDS[@]}" 2>/dev/null
    wait
    rm -rf "$SCRATCH" "${LEFTOVERS[@]}"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

# Ends the script with its usage, the first line of its head that is set in.
usage() {
    echo "usage: $(sed -n 's/^#   //p' "$0" | head -n 1)" >&2
    exit 2
}

# Reads --rounds and --runtime into the variables of these names.
rounds_and_runtime() { # ARGUMENTS...
    while [ $# -gt 0 ]; do
        case $1 in
        --rounds) rounds=$2 && shift ;;
        --runtime) runtime=$2 && shift ;;
        *) usage ;;
        esac
        shift
    done
}

machine() { # the facts without which no figure means anything
    printf 'machine: %s, %s CPUs, kernel %s\n' "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)" "$(nproc)" "$(uname -r)"
    printf 'headworks: %s, commit %s\n' "$("$HEADWORKS" --version 2>/dev/null)" "$(git -C "$root" describe --always --dirty 2>/dev/null)"
}

# Starts a server in the background; STARTED is its process.
start() { start_probed "nbd+unix:///?socket=$1" "$@"; } # SOCKET COMMAND...
start_probed() { # URI SOCKET COMMAND...
    local uri=$1 socket=$2 limit=$((SECONDS + 20))
    shift 2
    "$@" >"$socket.log" 2>&1 &
    STARTED=$!
    PIDS+=("$STARTED")
    until nbdinfo --size "$uri" >/dev/null 2>&1; do
        if ! kill -0 "$STARTED" 2>/dev/null || [ $SECONDS -ge $limit ]; then
            echo "$(basename "$0"): error: this server did not start: $*" >&2
            cat "$socket.log" >&2
            exit 1
        fi
        sleep 0.05
    done
}

stop_all() {
    kill "${PIDS[@]}" 2>/dev/null
    wait
    PIDS=()
}

# Fills a file with bytes that no server can mistake for a hole.
fill() { # FILE MIB
    python3 -c 'import random, sys
piece = random.Random(1).randbytes(1 << 20)
with open(sys.argv[1], "wb") as f:
    for i in range(int(sys.argv[2])):
        f.write(i.to_bytes(8, "big") + piece[8:])' "$1" "$2" || exit 1
    LEFTOVERS+=("$1")
}

# User and system time of all threads of a process, in clock ticks.
cpu_ticks() { # PID
    awk '{ sub(/.*\) /, ""); print $12 + $13 }' "/proc/$1/stat"
}

# Prints "IOPS TOTAL" of the JSON of `headworks bench`.
iops_of() { # JSON
    python3 -c 'import json, sys
run = json.load(open(sys.argv[1]))
if run["errors"]:
    sys.exit("%d I/Os failed" % run["errors"])
print(run["iops"], run["ios"])' "$1"
}

result() { # GROUP CELL SERVER PLACEMENT IOPS CPU
    (IFS=$'\t' && printf '%s\n' "$*") >>"$RESULTS"
    printf '.' >&2
}
