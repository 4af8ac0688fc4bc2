#!/usr/bin/env bash
# matrix: engine
# A server that is killed loses nothing: kill -9 under verified load, and what the next start finds.
#
# KILLS=1000 for a long run.
. "$(dirname "$0")/lib.sh"

memory=$(mktemp -d /dev/shm/hw-death.XXXXXX) || exit 1
trap 'rm -rf "$memory"' EXIT
mkdir "$IMAGES/death"
output=$("$PYTHON" "$HERE/process_death.py" --server "$HEADWORKS" --engine "$ENGINE" --image "$IMAGES/death/disk.img" \
    --memory "$memory" --socket "$SOCKET" --kills "${KILLS:-20}" --seed "${SEED:-$RANDOM}" 2>&1)
status=$?
grep -E '^(ok|not ok) - ' <<<"$output"
[ $status -eq 0 ] || { say "not ok" "process_death.py ends with 0"; quote <<<"$output"; }

export HW_SERVER=$HEADWORKS HW_ENGINE=$ENGINE HW_MEMORY=$memory HW_DIR=$DIR HW_IMAGES=$IMAGES
script kept.py
