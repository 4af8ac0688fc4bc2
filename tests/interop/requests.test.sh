#!/usr/bin/env bash
# matrix: engine,backend,cache
# Every request of the protocol by libnbd, with its flags and at its edges.
. "$(dirname "$0")/lib.sh"

serve "$(spec disk)"
script requests.py "$URI" "$SIZE"
stop_server
