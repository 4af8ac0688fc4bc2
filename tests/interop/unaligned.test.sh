#!/usr/bin/env bash
# matrix: engine
# seconds: 5
# Requests of any offset and length on exports without a cache, from several connections at once, against a model.
. "$(dirname "$0")/lib.sh"

BASE=$IMAGES/base.img
head -c 8M /dev/urandom >"$BASE"
"$HEADWORKS" image create --base "$BASE" "$IMAGES/over.hwo" >/dev/null
"$HEADWORKS" image create --base "$BASE" "$IMAGES/later.hwo" >/dev/null
DISK=$IMAGES/file.img
cp "$BASE" "$DISK"
# A base that ends within a block, and overlays on it that do, too.
ODD=$IMAGES/odd.img
head -c 3001001 "$BASE" >"$ODD"
cp "$ODD" "$IMAGES/odd2.img"
"$HEADWORKS" image create --base "$ODD" "$IMAGES/odd.hwo" >/dev/null
"$HEADWORKS" image create --base "$IMAGES/odd2.img" "$IMAGES/below.hwo" >/dev/null
"$HEADWORKS" image create --base "$IMAGES/below.hwo" "$IMAGES/cached.hwo" >/dev/null
CACHE=16M serve --shards 2 --control "$CONTROL" "file=file:path=$DISK,cache=none" "over=overlay:path=$IMAGES/over.hwo,cache=none" \
    "slow=delay:write=200us,read=100us,cache=none,of=overlay:path=$IMAGES/later.hwo" \
    "odd=overlay:path=$IMAGES/odd.hwo,cache=none" "cached=overlay:path=$IMAGES/cached.hwo"

script unaligned.py model "$SOCKET" "$BASE" file over slow
script unaligned.py model "$SOCKET" "$ODD" odd cached
check "the file has what was written" cmp "$DISK" "$DIR/model-file"
"$HEADWORKS" image create --base "$BASE" "$IMAGES/added.hwo" >/dev/null
check "an export is added" ctl add "added=overlay:path=$IMAGES/added.hwo,cache=none"
script unaligned.py model "$SOCKET" "$BASE" added
"$HEADWORKS" image create --base "$BASE" "$IMAGES/refusing.hwo" >/dev/null
check "one that refuses parts of blocks, too" ctl add "refusing=overlay:path=$IMAGES/refusing.hwo,cache=none,strict-blocks=on"
script unaligned.py strict "$SOCKET" refusing
check "exports of an image agree" fails 1 'already served with strict-blocks=on; use the same' add "again=overlay:path=$IMAGES/refusing.hwo,strict-blocks=off"

# A program that knows files alone.
mkdir "$DIR/mnt"
if [ -c /dev/fuse ] && command -v nbdfuse >/dev/null; then
    nbdfuse --pidfile "$DIR/fuse.pid" "$DIR/mnt/disk" "nbd+unix:///over?socket=$SOCKET" >"$DIR/fuse.log" 2>&1 &
    FUSE=$!
    if wait_until 10 test -s "$DIR/fuse.pid"; then
        text="a line of no whole block"
        put() { printf %s "$text" | dd of="$DIR/mnt/disk" bs=1 seek=12345 conv=notrunc status=none; }
        check "nbdfuse writes some bytes" put
        check "and reads them" bash -c '[ "$(dd if="$1" bs=1 skip=12345 count=${#2} status=none)" = "$2" ]' - "$DIR/mnt/disk" "$text"
        check "beside them nothing changed" cmp -n 12345 "$DIR/mnt/disk" "$DIR/model-over"
        fusermount3 -u "$DIR/mnt/disk" 2>/dev/null || fusermount -u "$DIR/mnt/disk" 2>/dev/null || umount "$DIR/mnt/disk"
    else
        skip "nbdfuse" "it does not mount: $(tail -n 1 "$DIR/fuse.log")"
    fi
    kill $FUSE 2>/dev/null
    wait $FUSE 2>/dev/null
else
    skip "nbdfuse" "no nbdfuse, or no FUSE here"
fi
stop_server

check "a base gets the bytes, and no more" "$HEADWORKS" image commit "$IMAGES/odd.hwo"
check "it is as it was written" cmp "$ODD" "$DIR/model-odd"
check "two layers are made one image" "$HEADWORKS" image flatten "$IMAGES/cached.hwo" "$IMAGES/flat.img"
check "which ends with the byte" cmp "$IMAGES/flat.img" "$DIR/model-cached"

# What a killed server had acknowledged, up to the end: into the cache of the next one, or onto the overlay.
if [ -w /dev/shm ]; then
    KEPT=$(mktemp -d /dev/shm/headworks-unaligned.XXXXXX)
    for next in writeback writethrough; do
        CACHE=16M serve --cache-file "$KEPT/cache" "odd=overlay:path=$IMAGES/odd.hwo"
        script unaligned.py kept "$SOCKET" write "$next"
        kill -9 "$SERVER"
        wait "$SERVER" 2>/dev/null
        SERVER=0
        CACHE=16M serve --cache-file "$KEPT/cache" "odd=overlay:path=$IMAGES/odd.hwo,cache=$next"
        check "what it had acknowledged is restored" grep -hq 'restored .* of acknowledged writes after the server was killed' "$OUT" "$LOG"
        script unaligned.py kept "$SOCKET" read "$next"
        stop_server
    done
    rm -rf "$KEPT"
else
    skip "what a killed server left" "no memory filesystem"
fi
