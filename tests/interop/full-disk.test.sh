#!/usr/bin/env bash
# matrix: either
# lock: host
# seconds: 14
# A disk that fills up under each way of caching and of reaching the image: memory, O_DIRECT, the kernel's page cache.
. "$(dirname "$0")/lib.sh"

SMALL=$DIR/small
mkdir -p "$SMALL"

small_tmpfs() { mount -t tmpfs -o size=8m small "$SMALL"; }
small_ext4() {
    truncate -s 12M "$IMAGES/small.ext4" && mkfs.ext4 -q -m 0 -O ^has_journal -F "$IMAGES/small.ext4" && mount -o loop "$IMAGES/small.ext4" "$SMALL"
}
at_end() {
    cleanup_status=$?
    [ "$SERVER" -eq 0 ] || kill -9 "$SERVER" 2>/dev/null
    SERVER=0
    mountpoint -q "$SMALL" && umount -l "$SMALL"
    (exit $cleanup_status)
    cleanup
}
trap at_end EXIT

told() { # what the log says of A: b for what could not be written out, e for its end
    sed -nE 's/.*export a: all failed write-back has been written.*/e/p; s/.*export a: [0-9]+ acknowledged bytes could not .*/b/p' "$LOG" |
        tr -d '\n'
}
told_end() { [[ $(told) == *e ]]; }
# The disk is full twice; whether an end between them was told depends on how fast all this goes.
told_by_turns() { told; [[ $(told) =~ ^(be){1,2}$ ]]; }

try() { # MODE KEYS SERVER OPTIONS...
    local mode=$1 keys=$2
    shift 2
    echo "# $mode ${keys:-(plain)} $*"
    rm -f "$SMALL"/*.img "$IMAGES/b.img"
    dd if=/dev/zero of="$SMALL/filler" bs=1M count=4 status=none conv=fsync
    serve --control "$CONTROL" "$@" "a=file:path=$SMALL/a.img,size=64M$keys" "b=file:path=$IMAGES/b.img,size=16M"
    script full_disk.py "$mode" "$(at a)" "$(at b)" "$CONTROL" "$SMALL/filler" "$SMALL/a.img"
    case $mode in writeback | retry)
        check "$mode: the log says that all could be written out in the end" wait_until 20 told_end
        check "$mode: and what could not be, once each time that the disk was full" told_by_turns
        ;;
    esac
    stop_server
}
all_modes() { # KEYS
    try writeback "$1" --cache 16M
    try retry "$1,on-error=retry" --cache 16M
    try through "$1,cache=writethrough" --cache 16M
    try none "$1" --cache 0
}

if ! reason=$(small_tmpfs 2>&1); then
    # Who is not root may be root of a namespace.
    if [ -z "${UNSHARED:-}" ] && unshare -rm true 2>/dev/null; then
        UNSHARED=1 exec unshare -rm bash "$0"
    fi
    skip "a full disk" "a small filesystem cannot be mounted: $reason"
    exit 0
fi
all_modes ""
rm -f "$SMALL"/*.img
truncate -s 1M "$SMALL/base.img"
serve --control "$CONTROL" b=mem:size=1M
dd if=/dev/zero of="$SMALL/filler" bs=64K status=none 2>/dev/null
check "an image without room for it is refused as such" fails 1 'No space left on device.*ENOSPC' add "x=overlay:path=$SMALL/x.hwo,base=$SMALL/base.img"
check "one that is not there, too" fails 1 'does not exist.*ENOENT' add "x=file:path=$SMALL/x.img"
stop_server
umount "$SMALL"

if ! reason=$(small_ext4 2>&1); then
    skip "a full disk below the page cache" "ext4 cannot be mounted: $reason"
    exit 0
fi
all_modes ""
all_modes ",direct=off"
