#!/usr/bin/env bash
# matrix: engine,backend,cache
# QEMU as the client: raw and qcow2 copies out of order, comparison, zeroes and discards.
. "$(dirname "$0")/lib.sh"

pseudo_random 40 qemu >"$DIR/source"
truncate -s "$SIZE" "$DIR/source"
serve "$(spec disk)"

check "qemu-img convert onto the disk, 8 writes at a time in any order" \
    qemu-img convert -n -W -m 8 -f raw -O raw "$DIR/source" "$URI"
check "qemu-img compare" qemu-img compare -f raw -F raw "$DIR/source" "$URI"
check "qemu-img convert from the disk into qcow2" qemu-img convert -W -m 8 -f raw -O qcow2 "$URI" "$DIR/back.qcow2"
check "qemu-img compare with the qcow2 copy" qemu-img compare -f raw -F qcow2 "$DIR/source" "$DIR/back.qcow2"
check "qemu-img convert with O_DIRECT manners (-t none), sparse parts skipped" \
    qemu-img convert -n -t none -S 64k -f qcow2 -O raw "$DIR/back.qcow2" "$URI"
check "qemu-img compare once more" qemu-img compare -f raw -F raw "$DIR/source" "$URI"

# qemu-io says "Pattern verification failed" and goes on, in some versions with exit 0.
qemu_io() { # FORMAT COMMANDS...
    local arguments=() output format=$1
    shift
    for command in "$@"; do arguments+=(-c "$command"); done
    output=$(qemu-io -f "$format" -d unmap "${arguments[@]}" "$URI" 2>&1) || { echo "$output"; return 1; }
    echo "$output"
    ! grep -Eq 'verification failed|error|rror:' <<<"$output"
}
check "write, zero, zero with unmap: each changes its own range only" qemu_io raw \
    'write -P 0xab 0 4M' 'write -z 1M 64k' 'write -z -u 2M 64k' 'write -z 3146240 512' flush \
    'read -P 0xab 0 1M' 'read -P 0 1M 64k' 'read -P 0xab 1114112 983040' 'read -P 0 2M 64k' \
    'read -P 0xab 2162688 983552' 'read -P 0 3146240 512' 'read -P 0xab 3146752 1047552'
check "discard leaves its neighbours alone" qemu_io raw \
    'write -P 0xcd 8M 4M' 'discard 9M 1M' 'read 9M 1M' 'read -P 0xcd 8M 1M' 'read -P 0xcd 10M 2M'
check "FUA writes" qemu_io raw 'write -f -P 0x11 16M 1M' 'write -f -z 16842752 4k' 'read -P 0 16842752 4k' 'read -P 0x11 16M 64k'
check "many requests in flight" qemu_io raw \
    'aio_write -P 1 20M 1M' 'aio_write -P 2 21M 1M' 'aio_write -P 3 22M 1M' 'aio_write -P 4 23M 1M' aio_flush \
    'aio_read -P 1 20M 1M' 'aio_read -P 4 23M 1M' 'aio_read -P 2 21M 1M' 'aio_read -P 3 22M 1M' aio_flush
check "unaligned writes and reads (QEMU widens them to our minimum)" qemu_io raw \
    'write -P 0x22 32M 16k' 'write -P 0x33 33554945 1025' 'read -P 0x33 33554945 1025' 'read -P 0x22 32M 513' 'read -P 0x22 33555970 1000'

check "qcow2 on the disk itself" qemu-img create -q -f qcow2 "$URI" 64M
check "work on it" qemu_io qcow2 'write -P 7 0 8M' 'discard 1M 1M' 'write -z -u 2M 1M' 'write -P 8 5M 64k' 'read -P 8 5M 64k' 'read -P 0 1M 2M'
check "qemu-img check finds no fault" qemu-img check -f qcow2 "$URI"
stop_server
