#!/usr/bin/env bash
# Inside the guest: ext4 on a loop device of a file of FUSE, under pressure in control groups of the given version.
#
# Version 2 holds writers below the limit of their group, so the server may be in it. Version 1 does not: with a server among them all memory
# of the group becomes pages that only the server can clean, so there the server has a group of its own.
. "$(dirname "$0")/../lib.sh"

LIMIT_MIB=40
top=$DIR/groups
files=$DIR/files
mount=$DIR/mount
mkdir -p "$top" "$files" "$mount"
servers=tight
if [ "$VERSION" = 1 ]; then
    servers=server
    kind=(-t cgroup -o memory)
    limit=memory.limit_in_bytes
else
    kind=(-t cgroup2)
    limit=memory.max
fi
make_group() {
    mount "${kind[@]}" group "$top" || return 1
    [ "$VERSION" = 1 ] || echo +memory >"$top/cgroup.subtree_control" || return 1
    local group
    for group in tight $servers; do
        mkdir -p "$top/$group" && echo $((LIMIT_MIB << 20)) >"$top/$group/$limit" || return 1
    done
}
join() { echo "$BASHPID" >"$top/$1/cgroup.procs"; }
marked() { # every thread has PF_MEMALLOC_NOIO, of which the kernel tells by /proc
    local stat
    for stat in /proc/"$SERVER"/task/*/stat; do
        # The ninth field; the name, the second one, may have blanks.
        (($(sed 's/.*) //' "$stat" | cut -d ' ' -f 7) & 0x80000)) || { cat "$stat"; return 1; }
    done
}
written() { # within the time, or says where all threads wait
    (join tight && exec dd if="$IMAGES/source" of="$mount/file" bs=1M conv=fsync status=none) &
    local writer=$!
    wait_until 60 is_gone $writer && wait $writer && return 0
    head -n 14 /proc/"$SERVER"/task/*/stack /proc/$writer/stack
    return 1
}
kills() { cat "$top"/*/memory.events "$top"/*/memory.oom_control 2>/dev/null | awk '/^oom_kill / { n += $2 } END { print n + 0 }'; }
pressed() { # the group was at its limit
    [ "$(cat "$top/tight/memory.failcnt" 2>/dev/null || awk '/^max / { print $2 }' "$top/tight/memory.events")" -gt 0 ]
}

check "control groups of version $VERSION with $LIMIT_MIB MiB" make_group
join $servers
serve --cache 8M --fuse "$files" "disk=file:path=$IMAGES/memory$VERSION.img,size=256M"
join .
check "the server is marked as one that write-back depends on" marked
check "a loop device on the file" losetup /dev/loop0 "$files/disk"
check "mkfs.ext4" mkfs.ext4 -q -F /dev/loop0
check "mount" mount /dev/loop0 "$mount"
check "a program of the group writes four times as much, and syncs" written
# A mount that hangs ends with the guest.
[ "$BAD" -eq 0 ] || exit 1
check "the group was at its limit" pressed
check "nothing was killed for memory" test "$(kills)" -eq 0
umount "$mount"
check "a new mount" mount /dev/loop0 "$mount"
check "all bytes are there" cmp "$IMAGES/source" "$mount/file"
check "umount" umount "$mount"
check "detach" losetup -d /dev/loop0
stop_server
exit $BAD
