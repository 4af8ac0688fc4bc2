#!/usr/bin/env bash
# matrix: either,backend,cache
# What an export is made of: the holes of a sparse image, by clients that ask for them, and what a cache has that the image has not.
. "$(dirname "$0")/lib.sh"

blocks() { stat -c %b "$1"; }

image=$IMAGES/disk.img
if [ "$BACKEND" != mem ]; then
    # Data at 1 and at 100 MiB, and holes around.
    truncate -s "$SIZE" "$image"
    pseudo_random 2 sparse >"$DIR/random"
    dd if="$DIR/random" of="$image" bs=1M seek=1 count=1 conv=notrunc status=none
    dd if="$DIR/random" of="$image" bs=1M seek=100 count=1 conv=notrunc status=none
fi
serve "disk=$(spec disk)" "other=$(spec other 16M)" "huge=$(spec huge 1T)" "bad=error:op=block_status,of=mem:size=16M" \
    "null=null:size=1T"

if [ "$BACKEND" != mem ]; then
    printf '%s\n' "0 1048576 3" "1048576 1048576 0" "2097152 102760448 3" "104857600 1048576 0" "105906176 28311552 3" >"$DIR/map"
    map_is() { # COMMAND...
        "$@" | awk '{ print $1, $2, $3 }' | tee /dev/stderr | cmp - "$DIR/map"
    }
    check "nbdinfo --map shows the image's holes" map_is nbdinfo --map "$(at disk)"
    check "headworks info --map shows the same" map_is "$HEADWORKS" info --map "$(at disk)"
    check "and its JSON is nbdinfo's" "$PYTHON" -c 'import json, subprocess, sys
ours, theirs = (json.loads(subprocess.check_output(c + ["--map", "--json", sys.argv[2]])) for c in ([sys.argv[1], "info"], ["nbdinfo"]))
assert ours == theirs and len(ours) == 5, (ours, theirs)' "$HEADWORKS" "$(at disk)"
    check "qemu-img map shows the data" bash -c '
        qemu-img map --output=json -f raw "$1" | "$2" -c "import json, sys
m = [(e[\"start\"], e[\"length\"]) for e in json.load(sys.stdin) if e[\"data\"]]
assert m == [(1 << 20, 1 << 20), (100 << 20, 1 << 20)], m"' - "$(at disk)" "$PYTHON"
    # 2 MiB of data are 4096 blocks of 512 bytes; a filesystem adds some.
    check "nbdcopy leaves the holes out" nbdcopy "$(at disk)" "$DIR/copy"
    check "and the bytes are the same" cmp "$image" "$DIR/copy"
    check "the copy is sparse" test "$(blocks "$DIR/copy")" -le 4600
    check "qemu-img convert leaves them out, too" qemu-img convert -f raw -O raw "$(at disk)" "$DIR/converted"
    check "and the bytes are the same once more" cmp "$image" "$DIR/converted"
    check "the converted image is sparse" test "$(blocks "$DIR/converted")" -le 4600
fi
check "a terabyte of null is one extent of data" bash -c 'test "$("$1" info --map --totals "$2")" = "1099511627776 100.0%   0 data"' \
    - "$HEADWORKS" "$(at null)"
script status.py "$SOCKET" "$SIZE" "${CACHE:-0}" "$image"
check "info --map says why it has none" bash -c '"$1" info --map "$2" 2>&1 | grep -q "^headworks: error: the request failed: input/output error$"' \
    - "$HEADWORKS" "$(at bad)"
stop_server
