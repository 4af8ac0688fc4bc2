#!/usr/bin/env bash
# Inside the guest: ext4 of this kernel on disks whose power is cut.
. "$(dirname "$0")/../lib.sh"

export TMPDIR=$DIR MOUNT=$DIR/mount
program=$(realpath "$(dirname "$0")/../crashtest/ext4.sh")
crashtest() { # LOAD STATES [OPTION]
    "$HEADWORKS" crashtest --size 8M --setup "bash $program setup" --run "bash $program load $1" --check "bash $program check" \
        --cuts "$2" --jobs 1 --seed 3 --timeout 60s "${@:3}" >"$DIR/found" 2>"$DIR/err"
}
holds() { crashtest fsync 6 || { cat "$DIR/found" "$DIR/err"; return 1; }; }
breaks() { crashtest forgetful 10 --stop-at-first; [ $? -eq 1 ] && grep 'was promised and is not there' "$DIR/found"; }
check "files that were synced are there in each of 6 states, and e2fsck finds no fault" holds
check "files that were not are missed" breaks
