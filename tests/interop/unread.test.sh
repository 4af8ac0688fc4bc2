#!/usr/bin/env bash
# matrix: engine
# seconds: 8
# Clients that leave replies unread use up the pool of buffers: others are served, and all get their bytes, in the clear and with TLS.
# Slow readers get one version of each block of theirs, however it changes, from buffers and from the cache.
. "$(dirname "$0")/lib.sh"

unread() { script unread.py "$1" "$URI" "$DIR/control" "$LOG" "${@:2}"; }

EXPORTS=("error:count=0,cache=none,of=mem:size=32M" "other=error:count=0,cache=none,weight=1000,of=mem:size=32M")
serve --buffers 64M --control "$DIR/control" "${EXPORTS[@]}"
unread served
stop_server
serve --buffers 64M --cache 64M --control "$DIR/control" "${EXPORTS[@]}"
unread served
stop_server
CHANGING=(mem:size=32M other=mem:size=32M)
serve --buffers 64M --control "$DIR/control" "${CHANGING[@]}"
unread versions
stop_server
check "certificates are made" "$HERE/certificates.sh" "$DIR"
serve --buffers 64M --tls require --tls-certificates "$DIR/pki" --control "$DIR/control" "${EXPORTS[@]}"
unread served "$DIR/pki"
stop_server
serve --buffers 64M --tls require --tls-certificates "$DIR/pki" --cache 128M --control "$DIR/control" "${CHANGING[@]}"
unread versions "$DIR/pki"
stop_server
# The first read of each client passes, those of the replies' rest do not.
serve --buffers 64M --control "$DIR/control" "error:op=read,after=27,of=mem:size=32M" "${EXPORTS[1]}"
unread failing
stop_server
