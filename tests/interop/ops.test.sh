#!/usr/bin/env bash
# matrix: either
# seconds: 9
# What a service manager and an operator rely on: sockets handed over, word of how far we are, another user, the sandbox, the log.
. "$(dirname "$0")/lib.sh"

ops() { script ops.py "$1" "$HEADWORKS" "$ENGINE" "$IMAGES"; }
ops activated
ops draining
ops sandbox
ops logs
if [ "$(id -u)" -eq 0 ]; then
    ops watched
    ops stopped_twice
    ops privileges
else
    skip "the watchdog and other users" "only root may stop a thread of another process and change to another user"
fi

# The service manager's own way, by its own tool: started by the first client.
if command -v systemd-socket-activate >/dev/null; then
    systemd-socket-activate -l "$SOCKET" --fdname=nbd "$HEADWORKS" serve --engine "$ENGINE" -U "$DIR/own" mem:size=64M >"$OUT" 2>"$LOG" &
    SERVER=$!
    # The file is there before anybody listens.
    listens() { awk -v path="$SOCKET" '$8 == path && $4 == "00010000" { found = 1 } END { exit !found }' /proc/net/unix; }
    wait_until 20 listens
    check "a client that systemd hands over is served" test "$(nbdinfo --size "$URI")" = 67108864
    check "the server's own socket is named, too" grep -qx "unix: $DIR/own, same exports" "$OUT"
    check "and served" nbdinfo --size "nbd+unix:///?socket=$DIR/own"
    stop_with TERM
    check "SIGTERM ends the server with 0" test "$STATUS" -eq 0
    check "the socket is systemd's and stays" test -S "$SOCKET"
    no_panic
else
    skip "a server that systemd starts for a client" "there is no systemd-socket-activate"
fi

# The device never answers the last flush: it is asked for again now and then, until the stop's time is over.
serve --stop-timeout 3 --set io_timeout=100 "slow=delay:flush=3600s,of=mem:size=1M"
stop_with TERM
check "a stop ends at its time though a device never answers" test "$STATUS" -eq 1
check "which is told once, by name" test "$(grep -c 'export slow: the final flush is slow' "$LOG")" -eq 1
check "and nothing else is told again and again" test "$(wc -l <"$LOG")" -lt 12
no_panic

check "an unknown user is the spelling's fault" bash -c '
    "$1" serve -u no-such-user mem:size=1M >/dev/null 2>"$2"
    [ $? -eq 2 ] && grep -qx "headworks: error: user: there is no user .no-such-user." "$2"' - "$HEADWORKS" "$DIR/err"
check "root is nobody to become" bash -c '
    "$1" serve -u root mem:size=1M >/dev/null 2>"$2"
    [ $? -eq 2 ] && grep -q "root drops no privileges" "$2"' - "$HEADWORKS" "$DIR/err"
