#!/usr/bin/env bash
# matrix: engine
# The lean client of `headworks bench`, against our server and against QEMU's: the bytes it verifies are real.
. "$(dirname "$0")/lib.sh"

bench() { "$HEADWORKS" bench --runtime 300ms --iodepth 16 "$@"; }

serve "$(spec disk)"
for rw in randwrite randrw write read randread; do
    check "bench --rw $rw --verify" bench --uri "$URI" --rw $rw --verify
done
check "structured replies, 64 KiB" bench --uri "$URI" --rw randrw --bs 64k --structured --verify
check "two connections" bench --uri "$URI" --rw randread --threads 2
check "300 connections on few threads" bench --uri "$URI" --rw randrw --threads 300 --iodepth 2 --verify
check "too many connections are refused in words" bash -c '"$1" bench --uri "$2" --threads 5000 2>&1 | grep -q "threads within 1..=4096"' - "$HEADWORKS" "$URI"
bench --uri "$URI" --rw randread --json >"$DIR/bench.json"
check "--json" "$PYTHON" -c 'import json, sys
run = json.load(open(sys.argv[1]))
assert run["iops"] > 100 and run["ios"] == run["read"]["ios"] > 100 and run["errors"] == 0, run' "$DIR/bench.json"
stop_server

truncate -s "$SIZE" "$DIR/qemu.img"
qemu-nbd -f raw -k "$SOCKET" -t -e 4 "$DIR/qemu.img" >"$LOG" 2>&1 &
SERVER=$!
check "qemu-nbd is up" wait_until 10 nbdinfo --size "$URI"
check "bench --verify against qemu-nbd" bench --uri "$URI" --rw randrw --verify
check "info against qemu-nbd" "$HEADWORKS" info "$URI"
kill "$SERVER"
wait "$SERVER"
SERVER=0

check "bench in process, on a file" bench --engine "$ENGINE" --device "$(spec disk)" --rw randrw
check "bench in process, on null: a million requests and not one allocation" bash -c '
    "$1" bench --device null:size=1G --ios 1000000 --json | "$2" -c "import json, sys; run = json.load(sys.stdin); print(run); sys.exit(run[\"allocations\"] != 0 or run[\"errors\"] != 0)"
    ' - "$HEADWORKS" "$PYTHON"
check "threads that feed one shard over rings, on a file" bench --engine "$ENGINE" --device "$(spec disk)" --rw randrw --feeders 3
check "the same on null: not one allocation" bash -c '
    "$1" bench --device null:size=1G --rw randwrite --feeders 16 --runtime 300ms --json | "$2" -c "import json, sys; run = json.load(sys.stdin); print(run); sys.exit(run[\"allocations\"] != 0 or run[\"errors\"] != 0 or run[\"ios\"] < 1000)"
    ' - "$HEADWORKS" "$PYTHON"
