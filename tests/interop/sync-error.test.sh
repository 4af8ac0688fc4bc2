#!/usr/bin/env bash
# matrix: engine
# lock: host
# The kernel loses what it had in its page cache, and says so once: nobody may hear of a good flush afterwards.
. "$(dirname "$0")/lib.sh"

SMALL=$DIR/small
LOOP=
mkdir -p "$SMALL"

# A disk of 64 MiB on memory of 8 MiB. (The loop device lies before it knows.)
small_disk() {
    mount -t tmpfs -o size=8m small "$SMALL" && truncate -s 64M "$SMALL/disk" && LOOP=$(losetup -f --show "$SMALL/disk")
}
at_end() {
    cleanup_status=$?
    [ "$SERVER" -eq 0 ] || { kill -9 "$SERVER" && wait "$SERVER"; } 2>/dev/null
    SERVER=0
    [ -z "$LOOP" ] || losetup -d "$LOOP"
    mountpoint -q "$SMALL" && umount -l "$SMALL"
    (exit $cleanup_status)
    cleanup
}
trap at_end EXIT

small_disk >"$DIR/why" 2>&1
if [ -z "$LOOP" ]; then
    skip "a write-back that fails" "there is no loop device: $(tail -n 1 "$DIR/why")"
    exit 0
fi
serve "file:path=$LOOP,direct=off"
script sync_error.py "$URI"
check "the log says which export is not to be trusted" grep -q "export default: a device flush failed" "$LOG"
stop_with TERM
check "the server says at its end that not all was written" test "$STATUS" -eq 1
no_panic
