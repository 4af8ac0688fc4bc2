#!/usr/bin/env bash
# Inside the guest: the server, and the kernel as its client.
. "$(dirname "$0")/../lib.sh"

CONTROL=$DIR/ctl
MOUNT=$DIR/mount
mkdir -p "$MOUNT"
IMAGE=$IMAGES/kernel.img

attach() { # DEVICE EXPORT OPTIONS...
    nbd-client -unix "$SOCKET" "/dev/$1" -N "$2" "${@:3}"
}
detach() { nbd-client -d "/dev/$1" && wait_until 10 test ! -e "/sys/block/$1/pid"; }
queue_says() { # DEVICE NAME VALUE
    echo "$(cat "/sys/block/$1/queue/$2")"
    [ "$(cat "/sys/block/$1/queue/$2")" = "$3" ]
}
same_tree() { diff -r "$TREE" "$MOUNT/tree"; }
discarded() { # EXPORT: bytes, as the server counts them
    "$HEADWORKS" ctl "$CONTROL" stats --json | "$PYTHON" -c 'import json, sys
print(json.load(sys.stdin)["exports"][sys.argv[1]]["ops"].get("discard", {}).get("bytes", 0))' "$1"
}
start() {
    serve --cache 16M --control "$CONTROL" "disk=file:path=$IMAGE,size=128M,on-unclean=serve" "memory=mem:size=64M,cache=none" \
        "bad=error:rate=100%,errno=ENOSPC,op=write,cache=none,of=mem:size=16M" "$@"
}

check "the kernel has nbd" test -b /dev/nbd0
start
check "nbd-client attaches it, two connections" attach nbd0 disk -C 2
check "the kernel has the size" test "$(cat /sys/block/nbd0/size)" -eq $((128 << 11))
check "and flushes" queue_says nbd0 write_cache "write back"
check "and FUA" queue_says nbd0 fua 1
check "and discards" test "$(cat /sys/block/nbd0/queue/discard_max_bytes)" -gt 0
check "mkfs.ext4" mkfs.ext4 -q /dev/nbd0
check "mount" mount /dev/nbd0 "$MOUNT"
check "a tree is copied" cp -a "$TREE" "$MOUNT/tree"
check "sync" sync -f "$MOUNT/tree"
check "umount" umount "$MOUNT"
check "detach" detach nbd0

# Another life of the device: nothing of it is in the guest's memory.
check "attach again" attach nbd0 disk
check "fsck finds no fault" e2fsck -fn /dev/nbd0
check "mount again" mount /dev/nbd0 "$MOUNT"
check "the tree is whole" same_tree

# Space that is given back takes nothing along that is still used.
check "a second copy" cp -a "$TREE" "$MOUNT/second"
check "which goes again" rm -r "$MOUNT/second"
sync -f "$MOUNT"
check "fstrim" fstrim "$MOUNT"
check "umount and mount" sh -c 'umount "$1" && mount /dev/nbd0 "$1"' - "$MOUNT"
check "the tree is whole still" same_tree

# Three devices at once, one of which fails.
check "a second device" attach nbd1 memory -C 2
check "a third" attach nbd2 bad
check "an error reaches the writer" sh -c '! dd if=/dev/zero of=/dev/nbd2 bs=64k count=1 conv=fsync 2>&1'
check "and reading goes on" cmp -n $((1 << 20)) /dev/nbd2 /dev/zero
check "a tar on the second while the first is written" bash -c 'cp -a "$1" "$2/third" & tar -C "$1" -cf /dev/nbd1 . && wait $!' - "$TREE" "$MOUNT"
blockdev --flushbufs /dev/nbd1
check "the tar is whole" tar -C "$TREE" -df /dev/nbd1
check "so is the copy" diff -r "$TREE" "$MOUNT/third"
check "a discarded device reads as zeros" sh -c 'blkdiscard /dev/nbd1 && cmp -n 67108864 /dev/nbd1 /dev/zero'
check "the server was told of all of it: $(discarded memory) bytes" test "$(discarded memory)" -ge $((64 << 20))
check "detach the others" sh -c 'nbd-client -d /dev/nbd1 && nbd-client -d /dev/nbd2'

# The server dies, and its memory with it; the file system is mounted anew as after a power cut. What was synced is there, what was not is ext4's business: its journal is replayed.
sync -f "$MOUNT"
rm -r "$MOUNT/third"
kill -9 "$SERVER"
wait "$SERVER" 2>/dev/null
SERVER=0
check "a file system whose server is gone fails and does not hang" sh -c '! { echo x >"$1/x" && sync -f "$1"; } 2>&1' - "$MOUNT"
umount "$MOUNT"
check "detach from a dead server" detach nbd0
start
check "attach to the new one" attach nbd0 disk
check "mount replays the journal" mount /dev/nbd0 "$MOUNT"
check "the tree that was synced is whole" same_tree
check "umount at the end" umount "$MOUNT"
check "fsck finds no fault after that" e2fsck -fn /dev/nbd0
check "detach at the end" detach nbd0
stop_server
