#!/usr/bin/env bash
# Headworks, qemu-nbd and nbdkit's filter qcow2dec reading one qcow2 image, in turn: in memory, and on a disk with O_DIRECT.
#
#   benches/qcow2.sh [options of benches/nbd-peers.sh]
exec "$(dirname "$0")/nbd-peers.sh" --group qcow2 --group qcow2-disk \
    --cell randread-4k-1 --cell randread-4k-32 --cell randread-64k-16 --cell randread-1M-4 "$@"
