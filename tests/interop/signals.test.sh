#!/usr/bin/env bash
# matrix: engine
# SIGTERM and SIGINT with clients attached and requests in flight: drain, flush, exit 0, take the socket away.
. "$(dirname "$0")/lib.sh"

attach() { # a client that keeps 64 requests in flight, and one that only sits there
    "$PYTHON" "$HERE/kill.py" flood "$URI" >"$DIR/flood" 2>&1 &
    flood=$!
    wait_until 10 grep -q flooding "$DIR/flood"
    "$PYTHON" -c 'import nbd, sys; h = nbd.NBD(); h.connect_uri(sys.argv[1]); print("idle", flush=True); sys.stdin.read()' \
        "$URI" >"$DIR/idle" 2>&1 < <(exec tail -f --pid=$$ /dev/null) &
    idle=$!
    wait_until 10 grep -q idle "$DIR/idle"
}
detach() {
    kill "$flood" "$idle" 2>/dev/null
    wait "$flood" "$idle" 2>/dev/null
}

pseudo_random 8 signals >"$DIR/source"
for signal in TERM INT; do
    serve "$(spec disk)"
    check "8 MiB acknowledged, not flushed" nbdcopy "$DIR/source" "$URI"
    attach
    stop_with $signal 30
    check "SIG$signal with clients attached ends the server with 0" test "$STATUS" -eq 0
    check "its socket is gone" test ! -e "$SOCKET"
    no_panic
    detach
    if [ "$BACKEND" != mem ]; then
        check "the image holds what was acknowledged" cmp -n $((8 << 20)) "$IMAGES/disk.img" "$DIR/source"
        rm "$IMAGES/disk.img"
    fi
done

# A supervisor such as timeout signals the process and then its group: two signals are one request to stop.
for n in 1 2 3 4 5; do
    serve --cache 64M "delay:write=20ms,cache=writeback,of=$(spec twice)"
    nbdcopy "$DIR/source" "$URI"
    kill -TERM "$SERVER"
    # Not the same signal, which would merge with the first while it is pending.
    kill -INT "$SERVER"
    wait_until 30 is_gone "$SERVER"
    wait "$SERVER"
    STATUS=$?
    SERVER=0
    check "two signals together end the server with 0 ($n)" test "$STATUS" -eq 0
    check "and everything is written out" grep -q 'stopped: everything is written out' "$LOG"
    if [ "$BACKEND" != mem ]; then
        check "the image holds what was acknowledged" cmp -n $((8 << 20)) "$IMAGES/twice.img" "$DIR/source"
        rm "$IMAGES/twice.img"
    fi
done
serve "$(spec quiet)"
stop_server
check "a stop with nothing to write says so" grep -q 'stopped: everything is written out; nothing was left to write' "$LOG"

# A write that takes longer than anybody waits here: the first signal waits for it, a third does not.
serve "delay:write=600s,of=$(spec disk)"
"$PYTHON" -c 'import nbd, sys
h = nbd.NBD()
h.connect_uri(sys.argv[1])
h.aio_pwrite(b"x" * 4096, 0)
while h.aio_in_flight() and not h.aio_is_dead():
    h.poll(0)
    print("sent", flush=True) if h.aio_in_flight() else None
    h.poll(-1)' "$URI" >"$DIR/slow" 2>&1 &
slow=$!
wait_until 10 grep -q sent "$DIR/slow"
# An answer to a later request shows that the write has reached the server, too.
check "reads go on while a write is delayed" nbdcopy --synchronous "$URI" null:
kill -TERM "$SERVER"
refuses_clients() { ! nbdinfo --size "$URI"; }
check "after SIGTERM there are no new clients" wait_until 10 refuses_clients
check "but the server waits for the write" kill -0 "$SERVER"
stop_at_once
check "more signals end it at once" test "$STATUS" -ne 255
check "with 1: something was not flushed" test "$STATUS" -eq 1
check "and it says so" grep -qi 'flush' "$LOG"
no_panic
kill $slow 2>/dev/null
# It may have ended by itself, when its connection did.
wait $slow 2>/dev/null || :

# A limit of the size of files sends a signal that ends a process; here it is an image without room.
limited() {
    (
        ulimit -f 4096
        exec "$HEADWORKS" serve --engine "$ENGINE" --cache 0 -U "$SOCKET" "a=file:path=$IMAGES/limited.img" b=mem:size=1M >"$OUT" 2>"$LOG"
    ) &
    SERVER=$!
    wait_until 20 is_up_or_gone
}
writes() { # EXPORT OFFSET ERROR, 0 for none
    "$PYTHON" - "$(at "$1")" "$2" "$3" <<'END'
import errno, nbd, sys
client = nbd.NBD()
client.connect_uri(sys.argv[1])
error = 0
try:
    client.pwrite(b"x" * 4096, int(sys.argv[2]))
except nbd.Error as refused:
    error = refused.errnum
client.shutdown()
sys.exit(f"errno {error}" if error != getattr(errno, sys.argv[3], 0) else 0)
END
}
truncate -s 16M "$IMAGES/limited.img"
limited
check "a server below a limit of the size of files starts" kill -0 "$SERVER"
check "a write within the limit succeeds" writes a 0 0
check "one beyond it has no room" writes a $((8 << 20)) ENOSPC
check "and another export is still served" writes b 0 0
stop_server
