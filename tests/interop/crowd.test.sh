#!/usr/bin/env bash
# matrix: either
# seconds: 17
# Many clients: 200 at once, one too many, no file left, half-open handshakes, those of TLS too, damaged sessions, thousands of visits.
. "$(dirname "$0")/lib.sh"

crowd() { script crowd.py "$1" "$URI" "$SERVER" "$LOG" "${@:2}"; }

serve "$(spec disk)"
crowd crowd
crowd visits
crowd knock
stop_server
serve --connections 64 mem:size=16M
crowd limit
stop_server
serve --handshake-timeout 1s mem:size=16M
crowd half
stop_server
check "certificates are made" "$HERE/certificates.sh" "$DIR"
serve --tls on --tls-certificates "$DIR/pki" --handshake-timeout 1s mem:size=16M
crowd keys "$DIR/pki"
stop_server
serve --buffers 64M --stall-timeout 1s mem:size=16M honest=mem:size=16M
crowd garbage
stop_server

# The limit of files is the shell's that starts it.
limits=$(ulimit -n)
ulimit -S -n 80
serve mem:size=16M
ulimit -S -n "$limits"
crowd files
stop_server
