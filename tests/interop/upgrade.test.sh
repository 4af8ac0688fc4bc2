#!/usr/bin/env bash
# matrix: engine
# seconds: 18
# A server is replaced while clients use it: `ctl upgrade` and SIGUSR2 under verified load, and replacements that fail.
# What is served changes between replacements, and no client gets another disk.
#
# UPGRADES=50 for a long run; DISK_CHANGES=200 for one of changes, SEED=N for the same changes again.
. "$(dirname "$0")/lib.sh"

memory=$(mktemp -d /dev/shm/hw-upgrade.XXXXXX) || exit 1
trap 'rm -rf "$memory"' EXIT
chmod 700 "$memory"
export HW_SERVER=$HEADWORKS HW_ENGINE=$ENGINE HW_MEMORY=$memory HW_DIR=$DIR HW_IMAGES=$IMAGES UPGRADES=${UPGRADES:-6}
export DISK_CHANGES=${DISK_CHANGES:-8}
script upgrade.py
script upgrade_disks.py
