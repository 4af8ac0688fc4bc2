#!/usr/bin/env bash
# matrix: once
# lock: uml
# seconds: 90
# A file system on a file of FUSE under memory pressure in control groups: the server goes on when its writers have no memory left, and they
# with it. In user-mode Linux, so that a deadlock stays there.
. "$(dirname "$0")/lib.sh"
GUEST_DOES="a file system on a file of FUSE under memory pressure"
. "$HERE/uml/boot.sh"
# Made here: the guest has too little memory for that.
pseudo_random 160 memory >"$IMAGES/source"
for version in 1 2; do
    rm -f "$FOLDER/checks"
    run_guest "$HERE/uml/memory.sh" 140 VERSION=$version "MODULES='fs/fuse/fuse drivers/block/loop'"
done
exit $BAD
