#!/usr/bin/env bash
# matrix: engine
# seconds: 30
# Disks of virtual machines by vhost-user-blk, without a machine: `machine.py` is front end and driver.
#
# KILLS=100 LIMIT=1800 for a long run, SEED=N for the same one again.
. "$(dirname "$0")/lib.sh"

memory=$(mktemp -d /dev/shm/hw-vhost.XXXXXX) || exit 1
trap 'rm -rf "$memory"' EXIT
chmod 700 "$memory"
export HW_SERVER=$HEADWORKS HW_ENGINE=$ENGINE HW_MEMORY=$memory HW_DIR=$DIR HW_IMAGES=$IMAGES
script vhost_user.py
