#!/usr/bin/env bash
# matrix: once
# A filesystem that cannot be changed (frozen, as for a snapshot of its disk): resizes and removals of its images wait for it, and changes of
# other exports do not.
. "$(dirname "$0")/lib.sh"

SMALL=$DIR/small
mkdir -p "$SMALL"
at_end() {
    cleanup_status=$?
    # Before the server, which cannot end while a thread waits for it.
    fsfreeze -u "$SMALL" 2>/dev/null
    [ "$SERVER" -eq 0 ] || kill -9 "$SERVER" 2>/dev/null
    SERVER=0
    mountpoint -q "$SMALL" && umount -l "$SMALL"
    (exit $cleanup_status)
    cleanup
}
trap at_end EXIT

mount_small() { truncate -s 32M "$IMAGES/small.ext4" && mkfs.ext4 -q -F "$IMAGES/small.ext4" && mount -o loop "$IMAGES/small.ext4" "$SMALL"; }
if ! reason=$(mount_small 2>&1); then
    skip "a frozen filesystem" "a small filesystem cannot be mounted: $reason"
    exit 0
fi
CACHE=16M
serve --control "$CONTROL" "cold=file:path=$SMALL/cold.img,size=4M" "gone=file:path=$SMALL/gone.img,size=4M" "ok=mem:size=1M"
script frozen_filesystem.py "$CONTROL" "$SMALL" "$SERVER"
check "the image has the new size" [ "$(stat -c %s "$SMALL/cold.img")" -eq $((5 << 20)) ]
check "the mark of the removed export is gone" [ ! -e "$SMALL/gone.img.headworks-dirty" ]
stop_server
