#!/usr/bin/env bash
# matrix: engine
# seconds: 12
# The driver of `headworks bench` against a vhost-user device, whose bytes it verifies, and against a server that is killed again and again.
#
# KILLS=1000 LIMIT=1800 for a long run.
. "$(dirname "$0")/lib.sh"

DISK=$DIR/disk.vhost
AT="vhost-user+unix:///?socket=$DISK"
bench() { "$HEADWORKS" bench --runtime 200ms --iodepth 16 --size 16M "$@"; }
refuses() { # PATTERN OPTIONS...: in words
    local output
    output=$(bench "${@:2}" 2>&1)
    local status=$?
    echo "exit $status: $output"
    [ $status -ne 0 ] && [[ $output =~ ^headworks:\ error:\ .*$1 ]]
}

serve "disk=$(spec disk)" --vhost-user "disk=$DISK"
check "one block is written over NBD" qemu-io -f raw -c "write -P 0x55 8M 4k" "nbd+unix:///disk?socket=$SOCKET"
check "bench refuses to overwrite it" refuses 'has data, near offset 8388608, .*--overwrite' --uri "$AT" --rw randwrite
for rw in randwrite randrw write read randread; do
    check "--rw $rw --verify" bench --uri "$AT" --overwrite --rw $rw --verify
done
check "it is read over NBD" bench --uri "nbd+unix:///disk?socket=$SOCKET" --rw read
check "four queues that poll" bench --uri "$AT" --overwrite --rw randrw --verify --threads 4 --poll
check "indirect tables" bench --uri "$AT&indirect=1" --overwrite --rw randrw --verify
check "64 KiB in 16 pieces" bench --uri "$AT&indirect=1&pieces=16" --overwrite --bs 64k --fill --rw randrw --verify
check "pieces of less than a sector" refuses 'multiple of 512 bytes' --uri "$AT&pieces=16" --bs 4k
check "more queues than the device has" refuses 'queues' --uri "$AT" --threads 65
check "blocks of 100 bytes" refuses 'blocks of 512 bytes' --uri "$AT" --bs 100
bench --uri "$AT" --json >"$DIR/bench.json"
check "--json" "$PYTHON" -c 'import json, sys
run = json.load(open(sys.argv[1]))
assert run["ios"] == run["read"]["ios"] > 100 and run["errors"] == 0, run
assert run["device_cpu_ns_per_io"] > 0 and run["ios_per_cpu_second"] > 0, run' "$DIR/bench.json"
stop_server
# Its requests are served: before that it would speak of a message that was not answered.
is_served() { ctl latency | grep -Eq '^disk +read +[1-9]'; }
ended() { # PROCESS: at once, with a sentence, though the run would take longer
    wait_until 20 is_gone "$1" || { kill -9 "$1"; return 1; }
    cat "$DIR/ended"
    grep -q '^headworks: error: the device closed the connection, with [0-9]* requests of queue 0 in flight$' "$DIR/ended"
}
for how in "" --poll; do
    serve "disk=$(spec disk)" --vhost-user "disk=$DISK" --control "$CONTROL"
    # shellcheck disable=SC2086
    bench --uri "$AT" --runtime 600s $how >"$DIR/ended" 2>&1 &
    BENCH=$!
    check "a driver ${how:-that sleeps} is served" wait_until 20 is_served
    stop_with KILL
    check "it ends with its server" ended $BENCH
done

check "kill -9 under verified requests of two queues" "$HEADWORKS" lab run vhost-kill --socket "$DIR/killed.vhost" --kills "${KILLS:-8}" \
    --seed "${SEED:-$RANDOM}" -- "$HEADWORKS" serve --engine "$ENGINE" --cache 0 --cache-file off -U "$DIR/killed.sock" \
    --vhost-user "a=$DIR/killed.vhost" "a=file:path=$IMAGES/killed.img,size=32M"
