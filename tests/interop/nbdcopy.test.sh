#!/usr/bin/env bash
# matrix: engine,backend,cache
# nbdcopy in both directions, with several connections and with one request at a time, data and holes.
. "$(dirname "$0")/lib.sh"

# 24 MiB of data, a hole, 8 MiB of data across the middle, a hole up to the end.
pseudo_random 32 copy >"$DIR/random"
truncate -s "$SIZE" "$DIR/source"
dd if="$DIR/random" of="$DIR/source" bs=1M count=24 conv=notrunc status=none
dd if="$DIR/random" of="$DIR/source" bs=1M skip=24 seek=60 conv=notrunc status=none

serve "$(spec disk)"
check "nbdcopy onto the disk, 4 connections" nbdcopy --flush --connections=4 --requests=64 "$DIR/source" "$URI"
check "nbdcopy back" nbdcopy --connections=4 --requests=64 "$URI" "$DIR/back"
check "the bytes are the same" cmp "$DIR/source" "$DIR/back"

# The second image has data where the first has holes, and zeros where it has data.
truncate -s "$SIZE" "$DIR/other"
dd if="$DIR/random" of="$DIR/other" bs=1M seek=30 conv=notrunc status=none
check "nbdcopy another image over it, 32 MiB requests, holes as zeroes" \
    nbdcopy --flush --allocated --request-size=33554432 "$DIR/other" "$URI"
rm "$DIR/back"
check "nbdcopy --synchronous back" nbdcopy --synchronous "$URI" "$DIR/back"
check "the bytes are the other's" cmp "$DIR/other" "$DIR/back"
check "nbdcopy from one connection of the server to another changes nothing" nbdcopy --requests=8 "$URI" "$URI"
check "and the bytes are still the other's" bash -c 'nbdcopy "$1" - | cmp - "$2"' - "$URI" "$DIR/other"
stop_server
if [ "$BACKEND" != mem ]; then
    check "the image itself holds them" cmp "$IMAGES/disk.img" "$DIR/other"
fi
