#!/usr/bin/env bash
# matrix: either
# seconds: 30
# A device that answers nothing, with 66 and 1000 clients, and with large reads: another export of its thread is read as before, every
# client is answered in time, and the log and `ctl` say what happens. Stops and drains beside one delay no other export.
. "$(dirname "$0")/lib.sh"

hang() { script hang.py "$1" "$URI" "$SERVER" "$DIR/control" "$LOG" "${@:2}"; }

EXPORTS=("slow=delay:read=3600s,of=null:size=1G" "v=mem:size=64M")
limits=$(ulimit -n)
ulimit -S -n 4096 2>/dev/null || ulimit -S -n "$(ulimit -H -n)"
for clients in 66 1000; do
    serve --io-timeout 2s --connections 1100 --control "$DIR/control" "${EXPORTS[@]}"
    hang many "$clients"
    stop_with KILL; no_panic
done
serve --io-timeout 2s --control "$DIR/control" "${EXPORTS[@]}"
hang large
stop_with KILL; no_panic
serve --io-timeout 2s --cache 32M --control "$DIR/control" "${EXPORTS[@]}"
hang many 66
stop_with KILL; no_panic
ulimit -S -n "$limits"
script stop_hung.py
