#!/usr/bin/env bash
# Inside the guest: ext4 of this kernel on disks whose power is cut.
. "$(dirname "$0")/../lib.sh"

export TMPDIR=$DIR MOUNT=$DIR/mount
program=$(realpath "$(dirname "$0")/../crashtest/ext4.sh")
crashtest() { # LOAD CUTS
    "$HEADWORKS" crashtest --size 8M --setup "bash $program setup" --run "bash $program load $1" --check "bash $program check" \
        --cuts "$2" --seed 3 --timeout 60s >"$DIR/found" 2>"$DIR/err"
}
holds() { crashtest fsync 6 || { cat "$DIR/found" "$DIR/err"; return 1; }; }
breaks() { crashtest forgetful 10; [ $? -eq 1 ] && grep 'was promised and is not there' "$DIR/found"; }
check "files that were synced are there after each of 6 power cuts, and e2fsck finds no fault" holds
check "files that were not are missed" breaks
