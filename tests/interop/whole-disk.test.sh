#!/usr/bin/env bash
# matrix: either
# Trim and zero of a terabyte: a sparse file, cached and not, and a device that takes its time for each command.
. "$(dirname "$0")/lib.sh"

for cache in 0 16M; do
    rm -f "$IMAGES/large.img"
    serve --cache $cache "file:path=$IMAGES/large.img,size=1T"
    script whole_disk.py "$URI" "$SERVER" "$IMAGES/large.img"
    stop_server
done
serve "delay:discard=1ms,write_zeroes=1ms,of=null:size=1T"
script whole_disk.py "$URI" "$SERVER"
stop_server
