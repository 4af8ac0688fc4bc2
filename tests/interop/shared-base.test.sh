#!/usr/bin/env bash
# matrix: either
# seconds: 6
# Overlays on one base share what is cached of it: read once for all, and no client sees another's bytes or its own old ones.
. "$(dirname "$0")/lib.sh"

memory=$(mktemp -d /dev/shm/hw-shared-base.XXXXXX) || exit 1
trap 'rm -rf "$memory"' EXIT
chmod 700 "$memory"
export HW_SERVER=$HEADWORKS HW_ENGINE=$ENGINE HW_MEMORY=$memory HW_DIR=$DIR HW_IMAGES=$IMAGES
script shared_base.py
