#!/usr/bin/env bash
# Inside the guest: what ext4 asks of a disk for each of a program's operations, in $FOLDER/commands: program, writes, flushes.
. "$(dirname "$0")/../lib.sh"

CONTROL=$DIR/ctl MOUNT=$DIR/mount
mkdir -p "$MOUNT"
asked() { # writes and flushes so far
    "$HEADWORKS" ctl "$CONTROL" stats --json | "$PYTHON" -c 'import json, sys
ops = json.load(sys.stdin)["exports"]["disk"]["ops"]
print(*(ops.get(op, {}).get("requests", 0) for op in ("write", "flush")))'
}
# A disk without FUA, as that of the model.
serve --cache 0 --control "$CONTROL" "disk=model:profile=sata,of=file:path=$IMAGES/commands.img,size=1G"
check "nbd-client attaches it" nbd-client -unix "$SOCKET" /dev/nbd0 -N disk
check "mkfs.ext4" mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 /dev/nbd0
check "mount" mount -o commit=600 /dev/nbd0 "$MOUNT"
yes | head -c 128K >"$MOUNT/old"
sync -f "$MOUNT"
for program in $PROGRAMS; do
    read -r writes flushes <<<"$(asked)"
    check "$program" "$PYTHON" "$(dirname "$0")/../dir.py" "$program" "$MOUNT"
    read -r writes_after flushes_after <<<"$(asked)"
    echo "$program $((writes_after - writes)) $((flushes_after - flushes))" >>"$FOLDER/commands"
    sync -f "$MOUNT"
done
check "umount" umount "$MOUNT"
check "detach" nbd-client -d /dev/nbd0
stop_server
