#!/usr/bin/env bash
# matrix: engine
# The lean client of `headworks bench`, against our server and against QEMU's: the bytes it verifies are real.
. "$(dirname "$0")/lib.sh"

bench() { "$HEADWORKS" bench --runtime 1 --bs 4k --iodepth 16 "$@"; }

serve "$(spec disk)"
for rw in randwrite randrw write read randread; do
    check "bench --rw $rw --verify" bench --uri "$URI" --rw $rw --verify
done
check "structured replies, 64 KiB" bench --uri "$URI" --rw randrw --bs 64k --structured --verify
check "two connections" bench --uri "$URI" --rw randread --threads 2
bench --uri "$URI" --rw randread --json >"$DIR/bench.json"
check "--json: fio's layout" "$PYTHON" -c 'import json, sys
job = json.load(open(sys.argv[1]))["jobs"][0]
assert job["read"]["iops"] > 100 and job["read"]["total_ios"] > 100, job' "$DIR/bench.json"
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

check "bench in process, on a file" bench --device "$(spec disk)" --rw randrw --verify
check "bench in process, on null" bench --device null:size=1G --rw randread
