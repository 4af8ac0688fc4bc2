#!/usr/bin/env bash
# matrix: engine
# Limits of bytes and I/Os a second: what libnbd's clients get, live changes, neighbours, and what waits at a stop.
. "$(dirname "$0")/lib.sh"

CONTROL=$DIR/ctl
ctl() { "$HEADWORKS" ctl "$CONTROL" "$@"; }
says() { # OUTPUT ARGUMENTS...
    local output
    output=$(ctl "${@:2}" 2>&1) || { echo "$output"; return 1; }
    echo "said: $output"
    [ "$output" = "$1" ]
}
fails() { # PATTERN ARGUMENTS...
    local output
    output=$(ctl "${@:2}" 2>&1) && return 1
    echo "$output"
    grep -Eq -- "$1" <<<"$output"
}
at() { echo "nbd+unix:///$1?socket=$SOCKET"; }

serve --control "$CONTROL" --limit iops-read=1000000 "db=mem:size=64M,iops-total=200" "w=mem:size=64M,bps-write=4M,bps-write-max=8M" "free=mem:size=64M"
check "the limits are shown" says "200" get exports/db/iops-total
check "in cgroup's words" says "rbps=max wbps=4194304 riops=max wiops=max" get exports/w/io.max
check "those of the server, too" says "1000000" get server/iops-read
check "a burst" says "exports/db/iops-total-max = 400" set exports/db/iops-total-max 400
check "and none" says "exports/db/iops-total-max = 0" set exports/db/iops-total-max 0
check "too low a rate" fails 'least is 4096.*EINVAL' set exports/w/bps-read 5
check "a burst below the limit" fails 'must be more than' set exports/w/bps-write-max 1M
check "a misspelled limit" fails 'exports/w/bps-write' set exports/w/bps-wirte 5M
script limits.py "$(at db)" "$(at w)" "$(at free)"
check "why names the limit" bash -c '"$1" ctl "$2" why db | tee /dev/stderr | grep -q "limit (export db: iops-total 200)"' - "$HEADWORKS" "$CONTROL"
check "a limit is lifted for those that wait" "$PYTHON" "$HERE/limits.py" lifted "$(at db)" "$HEADWORKS" "$CONTROL"
check "cgroup's words are set" says "exports/db/io.max = rbps=max wbps=max riops=50 wiops=max" set exports/db/io.max riops=50
check "an export is removed while its clients wait" "$PYTHON" "$HERE/limits.py" removed "$(at db)" "$HEADWORKS" "$CONTROL"
check "a client that waits for hours disconnects nobody else" says "exports/w/bps-write = 4096" set exports/w/bps-write 4096
check "and the server stops at once" "$PYTHON" "$HERE/limits.py" stopped "$(at w)" "$SERVER"
stop_server
check "the server ended well" test "$STATUS" -eq 0
