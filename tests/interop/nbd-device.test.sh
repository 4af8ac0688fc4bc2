#!/usr/bin/env bash
# matrix: engine
# seconds: 26
# Exports behind other NBD servers (`nbd:`): qemu-nbd, nbdkit and headworks, which are killed, stopped, changed and refuse.
. "$(dirname "$0")/lib.sh"

check "certificates are made" "$HERE/certificates.sh" "$DIR"
export HW_SERVER=$HEADWORKS HW_ENGINE=$ENGINE HW_DIR=$DIR HW_IMAGES=$IMAGES
script nbd_device.py
