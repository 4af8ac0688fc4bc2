#!/usr/bin/env bash
# matrix: either
# Every command with every flag and at every edge, on the wire: without a cache (O_DIRECT), with one, and for reading only.
. "$(dirname "$0")/lib.sh"

forms() { # WHAT
    local form
    for form in simple structured; do script flags.py $form "$1" "$URI"; done
}

serve "$(spec disk)"
forms writable
stop_server
serve --cache 16M "$(spec disk)"
forms writable
stop_server
serve -r "$(spec disk)"
forms read-only
stop_server
