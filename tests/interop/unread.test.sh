#!/usr/bin/env bash
# matrix: engine
# Clients that leave replies unread use up the pool of buffers: others are served, and all get their bytes, in the clear and with TLS.
. "$(dirname "$0")/lib.sh"

unread() { script unread.py "$URI" "$URI" "$DIR/control" "$@"; }

EXPORTS=(mem:size=32M "other=mem:size=32M,weight=1000")
serve --buffers 64M --control "$DIR/control" "${EXPORTS[@]}"
unread
stop_server
serve --buffers 64M --cache 64M --control "$DIR/control" "${EXPORTS[@]}"
unread
stop_server
check "certificates are made" "$HERE/certificates.sh" "$DIR"
serve --buffers 64M --tls require --tls-certificates "$DIR/pki" --control "$DIR/control" "${EXPORTS[@]}"
unread "$DIR/pki"
stop_server
