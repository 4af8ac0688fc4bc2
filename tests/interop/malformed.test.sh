#!/usr/bin/env bash
# matrix: either
# seconds: 24
# Malformed, hostile and lazy clients: they lose their own connection at most.
. "$(dirname "$0")/lib.sh"

serve --handshake-timeout 1s --stall-timeout 1s "$(spec disk)"
script stalled.py "$URI"
stop_server
serve --buffers 64M "$(spec disk)"
script malformed.py "$URI" "$SERVER" "$LOG"
check "an ordinary client is still served" nbdinfo --size "$URI"
stop_server
