#!/usr/bin/env bash
# matrix: either,backend
# seconds: 11
# A live switch of everything that can be switched, under 200 connections: no request is lost and no byte is wrong.
. "$(dirname "$0")/lib.sh"

disk=$(spec switches)
serve --control "$CONTROL" "$disk"
script switches.py "$HEADWORKS" "$URI" "$CONTROL" "$SIZE" "$DIR/expected"
check "what a new client reads is what was acknowledged" bash -c 'nbdcopy "$1" "$2" && cmp "$2" "$3"' - "$URI" "$DIR/found" "$DIR/expected"
stop_server
[ "$BACKEND" = mem ] || check "and so is the image when the server is gone" cmp "$IMAGES/switches.img" "$DIR/expected"
rm -f "$DIR/found" "$DIR/expected"
