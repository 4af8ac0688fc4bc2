#!/usr/bin/env bash
# matrix: engine
# seconds: 7
# The lean client of `headworks bench`, against our server and against QEMU's: the bytes it verifies are real.
. "$(dirname "$0")/lib.sh"

bench() { "$HEADWORKS" bench --runtime 300ms --iodepth 16 "$@"; }

# A benchmark that writes looks for data first.
refuses() { # PATTERN OPTIONS...: in words
    local output
    output=$(bench --uri "$URI" "${@:2}" 2>&1)
    local status=$?
    echo "exit $status: $output"
    [ $status -eq 1 ] && [[ $output =~ ^headworks:\ error:\ .*$1 ]]
}
write_at() { qemu-io -f raw -c "write -P 0x55 $1 4k" "$URI"; } # OFFSET

serve "$(spec disk)"
check "one block is written" write_at 64M
check "bench refuses to overwrite it" refuses 'has data, near offset 67108864, .*--overwrite' --rw randwrite
check "also with --fill" refuses 'has data' --rw read --fill
check "and wrote nothing" qemu-io -r -f raw -c 'read -P 0 0 1M' -c 'read -P 0x55 64M 4k' "$URI"
check "it reads the export, and says what figures of holes are" bash -c '
    said=$("$1" bench --runtime 300ms --uri "$2" --rw read); echo "$said"; [[ $said == *"holes: 100 % of the range"*"--fill --overwrite"* ]]' - "$HEADWORKS" "$URI"
check "the range before it is free" bench --uri "$URI" --size 32M --rw write --verify
for rw in randwrite randrw write read randread; do
    check "bench --rw $rw --verify" bench --uri "$URI" --overwrite --rw $rw --verify
done
check "it is the device of a bench in process, too" timeout 60 "$HEADWORKS" bench --engine "$ENGINE" --device "nbd:uri=$URI" --rw randrw --ios 2000
check "structured replies, 64 KiB" bench --uri "$URI" --overwrite --rw randrw --bs 64k --structured --verify
check "two connections" bench --uri "$URI" --rw randread --threads 2
check "300 connections on few threads" bench --uri "$URI" --overwrite --rw randrw --threads 300 --iodepth 2 --verify
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
check "which has data now" refuses 'has data, near offset' --rw randrw
check "info against qemu-nbd" "$HEADWORKS" info "$URI"
kill "$SERVER"
wait "$SERVER"
SERVER=0

rm -f "$SOCKET"
qemu-nbd -f raw -k "$SOCKET" "$DIR/qemu.img" >"$LOG" 2>&1 &
SERVER=$!
check "qemu-nbd is up for one client" wait_until 10 test -S "$SOCKET"
check "bench measures a server that ends with its first client" bench --uri "$URI" --rw randread
wait "$SERVER"
SERVER=0

# Everything of null is data that reads as zeros: more than is worth reading.
serve null:size=1T
check "what is not known to be zeros is not overwritten" bash -c '
    said=$("$1" bench --uri "$2" --rw write 2>&1); echo "$said"; [[ $said == *"may have data behind the first 1 GiB of zeros"*--overwrite* ]]' - "$HEADWORKS" "$URI"
stop_server

check "bench in process, on a file" bench --engine "$ENGINE" --device "$(spec disk)" --rw randrw
truncate -s 16M "$DIR/half.img"
head -c 8M /dev/urandom | dd of="$DIR/half.img" conv=notrunc status=none
check "bench in process tells how much of a file is holes" bash -c '
    said=$("$1" bench --runtime 100ms --engine "$2" --device "file:path=$3" --json); echo "$said"; [[ $said == *"\"holes_percent\": 50.0"* ]]' - "$HEADWORKS" "$ENGINE" "$DIR/half.img"
check "a reader that has seen enough ends no command with a panic" without_reader "$HEADWORKS" bench --device null:size=1G --ios 100000
check "bench in process, on null: a million requests and not one allocation" bash -c '
    "$1" bench --device null:size=1G --ios 1000000 --json | "$2" -c "import json, sys; run = json.load(sys.stdin); print(run); sys.exit(run[\"allocations\"] != 0 or run[\"errors\"] != 0)"
    ' - "$HEADWORKS" "$PYTHON"
check "threads that feed one shard over rings, on a file" bench --engine "$ENGINE" --device "$(spec disk)" --rw randrw --feeders 3
# The jobs of seed 003.
check "252 threads that write and read a cached disk" bench --engine "$ENGINE" --device mem:size=64M --cache 16M --rw randrw --feeders 252
check "the same on null: not one allocation" bash -c '
    "$1" bench --device null:size=1G --rw randwrite --feeders 16 --runtime 300ms --json | "$2" -c "import json, sys; run = json.load(sys.stdin); print(run); sys.exit(run[\"allocations\"] != 0 or run[\"errors\"] != 0 or run[\"ios\"] < 1000)"
    ' - "$HEADWORKS" "$PYTHON"
