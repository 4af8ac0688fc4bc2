#!/usr/bin/env bash
# matrix: engine
# A hostile client of one tenant beside an honest one of another, each with a socket of its own.
. "$(dirname "$0")/lib.sh"

CONFIG=$DIR/main.toml
printf '[server]\ncontrol = "%s"\n' "$CONTROL" >"$CONFIG"
for name in acme globex; do
    letter=${name:0:1}
    head -c 8M /dev/zero | tr '\0' "${letter^^}" >"$IMAGES/$letter-db.img"
    cat >>"$CONFIG" <<SECTION
[[tenant]]
name = "$name"
exports = ["$letter-*"]
[[listen]]
name = "$name"
unix = "$DIR/$name.sock"
tenant = "$name"
[[export]]
name = "$letter-db"
file = { path = "$IMAGES/$letter-db.img" }
SECTION
done
serve_at --config "$CONFIG"
script neighbours.py "$DIR" "$CONTROL"
qemu_refused() { ! qemu-io -r -f raw -c 'read 0 4k' "nbd+unix:///g-db?socket=$DIR/acme.sock"; }
check "qemu-io does not open the neighbour's export" qemu_refused
check "its bytes are as its own client left them" qemu-io -r -f raw -c 'read -P 71 0 4k' "nbd+unix:///g-db?socket=$DIR/globex.sock"
stop_with TERM
check "SIGTERM ends the server with 0" test "$STATUS" -eq 0
no_panic
