#!/usr/bin/env bash
# matrix: engine
# lock: host
# seconds: 16
# A server that is killed loses nothing: kill -9 under verified load, of a file and of chains of overlays, and what the next start finds.
#
# KILLS=1000 LIMIT=1800 for a long run: so many of the file, and as many of the overlays in the three modes together.
. "$(dirname "$0")/lib.sh"

memory=$(mktemp -d /dev/shm/hw-death.XXXXXX) || exit 1
trap 'rm -rf "$memory"' EXIT
KILLS=${KILLS:-20}
death() { # NAME KILLS ARGUMENTS...
    local output status
    mkdir "$IMAGES/$1"
    output=$("$PYTHON" "$HERE/process_death.py" --server "$HEADWORKS" --engine "$ENGINE" --image "$IMAGES/$1/disk.img" \
        --memory "$memory" --socket "$SOCKET" --kills "$2" --seed "${SEED:-$RANDOM}" "${@:3}" 2>&1)
    status=$?
    grep -E '^(ok|not ok) - ' <<<"$output"
    [ $status -eq 0 ] || { BAD=1; say "not ok" "process_death.py ends with 0"; quote <<<"$output"; }
    rm -rf "${IMAGES:?}/$1"
}
death file "$KILLS"
for mode in writeback stream writethrough none; do
    death "$mode" $(((KILLS + 2) / 3)) --overlays 3 --mode "$mode"
done

export HW_SERVER=$HEADWORKS HW_ENGINE=$ENGINE HW_MEMORY=$memory HW_DIR=$DIR HW_IMAGES=$IMAGES
script kept.py
