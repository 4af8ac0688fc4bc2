#!/usr/bin/env bash
# matrix: either,backend
# What the handshake promises: size, flags, block sizes, the list of exports.
. "$(dirname "$0")/lib.sh"

serve "$(spec disk)"
nbdinfo --json "$URI" >"$DIR/info.json" 2>"$DIR/info.err" || quote <"$DIR/info.err"

field() { # WHAT PYTHON-EXPRESSION over `e`, the export
    check "$1" "$PYTHON" -c 'import json, sys; i = json.load(open(sys.argv[1])); e = i["exports"][0]; print(i); sys.exit(not eval(sys.argv[2]))' \
        "$DIR/info.json" "$2"
}

field "nbdinfo --json: the size" "e['export-size'] == $SIZE"
field "fixed newstyle with structured replies" "i['protocol'] == 'newstyle-fixed' and i['structured']"
field "not read-only" "not e['is_read_only']"
for flag in flush fua trim zero fast_zero df multi_conn; do
    field "can_$flag" "e['can_$flag']"
done
field "the minimum block is a power of two up to 4096" "e['block_size_minimum'] in (1, 512, 1024, 2048, 4096)"
field "the preferred block is at least the minimum, and a power of two" \
    "e['block_size_preferred'] >= e['block_size_minimum'] and e['block_size_preferred'] & (e['block_size_preferred'] - 1) == 0"
field "the largest request is 32 MiB" "e['block_size_maximum'] == 32 << 20"

check "nbdinfo --size" test "$(nbdinfo --size "$URI")" = "$SIZE"
check "nbdinfo --list" nbdinfo --list "$URI"
check "nbdinfo refuses an export that is not there" bash -c '! nbdinfo "$1"' - "nbd+unix:///nowhere?socket=$SOCKET"
check "headworks info" "$HEADWORKS" info "$URI"
check "headworks info --json is JSON" bash -c '"$1" info --json "$2" | python3 -m json.tool' - "$HEADWORKS" "$URI"
stop_server
