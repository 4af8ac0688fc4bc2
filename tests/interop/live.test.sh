#!/usr/bin/env bash
# matrix: either
# seconds: 10
# Exports are added, removed, resized and drained while the server runs and clients work; records of that replay.
. "$(dirname "$0")/lib.sh"

live() { script live.py "$1" "$CONTROL" "$SOCKET" "$IMAGES" "${@:2}"; }
writable() { qemu-io -f raw -c "write 0 4k" "$1"; }
locked() { ! writable "$1"; }
replays() { # one record for each shard
    local file
    for file in "$DIR"/record*; do
        grep -aq 'add-volume' "$file" || { echo "$file has no change"; return 1; }
        "$HEADWORKS" lab replay "$file" || return 1
    done
}

# As a user does it, from the folder of the images.
truncate -s 16M "$IMAGES/base.img" "$IMAGES/more.img"
serve --control "$CONTROL" --cache 16M "base=$IMAGES/base.img"
check "add, by a path of the shell's folder" bash -c 'cd "$3" && "$1" ctl "$2" add more=more.img' - "$HEADWORKS" "$CONTROL" "$IMAGES"
check "it has a row" says_like '^more +16 MiB +hw0 +writeback +rw +- +100 +be,4 +0 +0 bytes +- +- +- +serving$' exports
check "and its names" says_like '^exports/more/device = hw0$' get exports/more
check "and a client" bash -c 'nbdinfo "$1" | tee /dev/stderr | grep -q "export-size: 16777216"' - "nbd+unix:///more?socket=$SOCKET"
check "and is locked" locked "$IMAGES/more.img"
check "a name that is taken" fails 1 'already.*EEXIST' add "more=$IMAGES/other.img"
check "a file that is not there" fails 1 'does not exist' add "$IMAGES/nothing.img"
check "words that are none" fails 1 'size.*EINVAL' add "x=mem:size=many"
check "a fake without a size" fails 1 'needs a size' add x=null:
check "another caching of a file that is served" fails 1 'already served with cache=writeback.*EINVAL' add "x=file:path=$IMAGES/more.img,cache=none"
check "no words: exit 2" bash -c '"$1" ctl "$2" remove; [ $? -eq 2 ]' - "$HEADWORKS" "$CONTROL"
check "remove" says_like '^more: removed; its image is closed$' remove more
check "it is unlocked" writable "$IMAGES/more.img"
check "and not there any more" fails 1 'no export .more.; there are base.*ENOENT' remove more
check "resize" says_like '^base: 16 MiB before, 32 MiB now$' resize base 32M
check "a new client is told" bash -c 'nbdinfo --size "$1" | grep -qx 33554432' - "$URI"
# Of an image that has grown; removed again, so that one export is there as before.
check "a further export of it has that size" bash -c '"$1" ctl "$2" add "again=$3" && nbdinfo --size "$4" | grep -qx 33554432' - \
    "$HEADWORKS" "$CONTROL" "$IMAGES/base.img" "nbd+unix:///again?socket=$SOCKET"
check "and goes" says_like '^again: removed' remove again
check "never shorter" fails 1 'cannot shrink.*EINVAL' resize base 16M
check "drain" says_like '^0 bytes written out and flushed in [0-9.]+ s$' drain
check "JSON" bash -c '"$1" ctl --json "$2" exports | "$3" -c "import json, sys; assert json.load(sys.stdin)[0][\"size\"] == 32 << 20"' - "$HEADWORKS" "$CONTROL" "$PYTHON"
live slow
live empty
stop_server

# An image that is deleted underneath: it is served on, and everything says so.
truncate -s 16M "$IMAGES/gone.img"
serve --control "$CONTROL" --cache 16M --metrics 127.0.0.1:0 "gone=$IMAGES/gone.img" "base=$IMAGES/base.img"
METRICS=$(sed -n 's/^metrics: //p' "$OUT")
GONE="nbd+unix:///gone?socket=$SOCKET"
rm "$IMAGES/gone.img"
check "a deleted image is seen at once" says_like '^gone +16 MiB .* deleted$' exports
check "with what that means" says_like '^gone: its image was deleted; its data are lost when it is closed$' exports
check "the other one is served" says_like '^base .* serving$' exports
check "it is served on" nbdcopy --synchronous "$GONE" null:
told() { nbdinfo --size "$GONE"; grep -q 'export gone: its image was deleted; it is served until' "$LOG"; }
check "the log tells it while there are requests" wait_until 20 told
check "once" test "$(grep -c 'export gone: its image was deleted; it is served' "$LOG")" -eq 1
check "why names it, and not the export that serves" says_like '^gone: its image was deleted; its data are lost when it is closed' why
check "metrics, too" sh -c 'curl -s "$1" | grep -q "^headworks_export_state{export=\"gone\",state=\"deleted\"} 1"' - "$METRICS"
stop_server
check "and a stop what is lost" grep -q 'export gone: its image was deleted; what was written to it is lost' "$LOG"
# A start looks at an image and changes nothing of it, so backups by time do not copy it.
touch -d 2020-01-01 "$IMAGES/base.img"
before=$(stat -c '%y %z' "$IMAGES/base.img")
serve "base=$IMAGES/base.img"
nbdinfo --size "$URI" >/dev/null
stop_server
check "a start and a stop change no time of an image" test "$before" = "$(stat -c '%y %z' "$IMAGES/base.img")"

for shards in 1 2; do
    truncate -s 0 "$IMAGES/base.img" && truncate -s 16M "$IMAGES/base.img"
    spread=()
    [ $shards -eq 1 ] || spread=(--spread)
    serve --control "$CONTROL" --cache 16M --shards $shards "${spread[@]}" "base=$IMAGES/base.img"
    live changes
    live coming
    stop_server
done

# With a cache that is soon full, so that what grows is something else.
serve --control "$CONTROL" --cache 1M "base=$IMAGES/base.img"
live rounds "$SERVER"
stop_server

for shards in 1 2; do
    truncate -s 0 "$IMAGES/base.img" && truncate -s 16M "$IMAGES/base.img"
    rm -f "$DIR"/record*
    serve --control "$CONTROL" --cache 4M --shards $shards --record "$DIR/record" "base=$IMAGES/base.img"
    live record
    stop_server
    check "$shards shards: records with changes replay to their hashes" replays
done
