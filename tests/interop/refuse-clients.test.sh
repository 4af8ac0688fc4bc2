#!/usr/bin/env bash
# matrix: once
# `ctl refuse-clients` and `accept-clients`: present clients go on, new ones are told why they are refused, and it can be undone.
. "$(dirname "$0")/lib.sh"

serve --control "$CONTROL" --shards 2 --spread --metrics 127.0.0.1:0 db=mem:size=8M logs=mem:size=8M
METRICS=$(sed -n 's/^metrics: //p' "$OUT")
refused() { # PATTERN COMMAND...
    local said
    said=$("${@:2}" 2>&1) && { echo "it succeeded: $said"; return 1; }
    echo "$said"
    grep -q "$1" <<<"$said"
}

# A client that is there before, and stays.
coproc PRESENT { exec qemu-io -f raw "$(at db)" 2>&1; }
PRESENT_ID=$PRESENT_PID
exec 8<&"${PRESENT[0]}" 9>&"${PRESENT[1]}"
tell() { echo "$1" >&9; }
hears() { # PATTERN: a line of the client
    local line
    while read -r -t 20 -u 8 line; do
        echo "$line"
        [[ $line =~ $1 ]] && return 0
    done
    return 1
}
tell 'write -P 3 0 4k'
check "a client is there" hears 'wrote 4096/4096'
check "new clients are refused" says 'db: no new clients; 1 present' refuse-clients db
check "nbdinfo is refused" refused 'replied with error to opt_go' nbdinfo "$(at db)"
check "qemu-img is told why" refused 'export "db" takes no new clients now' qemu-img info -f raw "$(at db)"
check "the log has a line for each" sh -c '[ "$(grep -c "connection ended: export .db. takes no new clients now" "$1")" -ge 2 ]' - "$LOG"
by_export_name() {
    "$PYTHON" -c 'import sys; sys.path.insert(0, sys.argv[1]); import rawnbd
raw = rawnbd.Raw(sys.argv[2]).greet()
raw.option(rawnbd.OPT_EXPORT_NAME, b"db")
assert raw.socket.recv(1) == b"", "it was let in"' "$HERE" "$URI"
}
check "a client by EXPORT_NAME is refused, too" by_export_name
check "another export is open" nbdinfo --size "$(at logs)"
check "the export is listed" sh -c 'nbdinfo --list "$1" 2>&1 | grep -q "export=\"db\""' - "$URI"
check "the state is shown" says_like '^db .* refusing$' exports
check "in metrics, too" sh -c 'curl -s "$1" | grep -q "^headworks_export_state{export=\"db\",state=\"refusing\"} 1"' - "$METRICS"
tell 'read -P 3 0 4k'
check "the present client goes on" hears 'read 4096/4096'
check "a change of the export keeps it" ctl set exports/db/weight 300
check "it is still refused" refused 'replied with error' nbdinfo "$(at db)"
check "accepted again" says 'db: open for clients' accept-clients 'd?'
check "a new client comes" nbdinfo --size "$(at db)"
check "all are refused" says 'db, logs: no new clients; 1 present' refuse-clients --all
check "each of them" refused 'export "logs" takes no new clients now' qemu-img info -f raw "$(at logs)"
check "the default export is not replaced by another" refused 'export "db" takes no new clients now' qemu-img info -f raw "$URI"
check "all are accepted" says 'db, logs: open for clients' accept-clients --all
check "as before" sh -c 'nbdinfo --size "$1" && nbdinfo --size "$2"' - "$(at db)" "$(at logs)"
tell quit
exec 9>&- 8<&-
wait "$PRESENT_ID"
stop_server
