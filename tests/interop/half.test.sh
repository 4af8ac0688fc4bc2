#!/usr/bin/env bash
# matrix: either
# seconds: 60
# Clients of one export that begin writes and do not end them, slow links, suspended copies, half handshakes: requests of every size of a client
# of another export are answered beside them, the slow ones get their bytes, and memory stays within --buffers.
. "$(dirname "$0")/lib.sh"

half() { script half.py "$1" "$SOCKET" "$SERVER" "${@:2}"; }

# In memory: what is tried is the wait for buffers, not the disk.
EXPORTS=(--stall-timeout 600s "a=error:count=0,of=mem:size=256M" "b=error:count=0,of=mem:size=256M")
serve "${EXPORTS[@]}"
half senders
half links
half handshakes
half atomic
if command -v nbdcopy >/dev/null; then
    half copies
else
    skip "suspended copies" "no nbdcopy"
fi
stop_server
check "certificates are made" "$HERE/certificates.sh" "$DIR"
serve --tls require --tls-certificates "$DIR/pki" --shards 2 "${EXPORTS[@]}"
half senders "$DIR/pki"
half links "$DIR/pki"
stop_server
