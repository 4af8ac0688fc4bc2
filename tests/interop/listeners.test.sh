#!/usr/bin/env bash
# matrix: either
# Listeners with exports of their own: what clients of each see, certificates, reloads and upgrades under load.
. "$(dirname "$0")/lib.sh"

CONFIG=$DIR/main.toml
for name in a-db a-web g-db shared; do truncate -s 4M "$IMAGES/$name.img"; done
group=$(id -g)
cat >"$CONFIG" <<EOF
[server]
control = "$CONTROL"
# Longer than a check waits: a reload ends handshakes, not their time limit.
handshake-timeout = "600s"
[[tenant]]
name = "acme"
exports = ["a-*"]
[[tenant]]
name = "globex"
exports = ["g-*"]
[[listen]]
name = "acme"
unix = "$DIR/acme.sock"
mode = "0620"
owner = ":$group"
exports = ["shared"]
tenant = "acme"
[[listen]]
name = "globex"
unix = "$DIR/globex.sock"
tenant = "globex"
[[listen]]
name = "all"
address = "127.0.0.1:0"
EOF
for name in a-db a-web g-db shared; do
    printf '[[export]]\nname = "%s"\nfile = { path = "%s" }\n' "$name" "$IMAGES/$name.img" >>"$CONFIG"
done
# Its image is missing: only acme is told.
printf '[[export]]\nname = "a-gone"\nfile = { path = "%s" }\n' "$IMAGES/gone.img" >>"$CONFIG"

checked() { "$HEADWORKS" check "$CONFIG" | tee /dev/stderr | grep -q "$1"; }
check "check names the exports of a listener" checked "^listener: acme at $DIR/acme.sock: a-db, a-web, shared, a-gone\$"
check "and one that offers all" checked '^listener: all at 127.0.0.1:0: every export$'
sed 's/tenant = "globex"/tenant = "globx"/; s/\["shared"\]/["shared", "share"]/' "$CONFIG" >"$CONFIG.odd"
warned() { "$HEADWORKS" check "$CONFIG.odd" | tee /dev/stderr | grep -qF "$1"; }
check "check warns of an unknown tenant" warned 'listener globex: there is no tenant `globx`; the nearest is `globex`'
check "and of a name that no export has" warned 'listener acme: no export is named share'
dumped() {
    "$HEADWORKS" serve -c "$CONFIG" --listen "unix=$DIR/more.sock,exports=a-*+shared" --dump-config >"$DIR/dump.toml" &&
        grep -q '^exports = \["a-\*", "shared"\]' "$DIR/dump.toml" && "$HEADWORKS" check "$DIR/dump.toml"
}
check "a dump has the listeners, those of the command line too" dumped

serve_at --config "$CONFIG"
announces() { grep -qxF "listener: acme at $DIR/acme.sock: offers a-db, a-web, shared" "$OUT" && grep -qxF "uri: nbd+unix:///a-db?socket=$DIR/acme.sock" "$OUT"; }
check "the start names each listener with its URIs" announces
check "no private socket is made" sh -c '! grep -q headworks.sock "$1"' - "$OUT"
check "mode and group of the socket" test "$(stat -c '%a %g' "$DIR/acme.sock")" = "620 $group"
check "the mode of another one is the server's" test "$(stat -c %a "$DIR/globex.sock")" = 600
lists() { # SOCKET NAMES
    [ "$(nbdinfo --list --json "nbd+unix:///?socket=$DIR/$1.sock" | tee /dev/stderr | grep -o '"export-name": "[^"]*"' | cut -d'"' -f4 | paste -sd' ')" = "$2" ]
}
check "acme's socket lists its exports" lists acme "a-db a-web shared"
check "globex's socket lists its exports" lists globex g-db
check "qemu-img opens an own export" qemu-img info "nbd+unix:///a-db?socket=$DIR/acme.sock"
qemu_refused() { ! qemu-img info "nbd+unix:///g-db?socket=$DIR/acme.sock"; }
check "and not a neighbour's" qemu_refused
check "a table of listeners" says_like "^acme +nbd +$DIR/acme.sock +off +0 +a-db a-web shared\$" listeners
script listeners.py live "$DIR" "$CONTROL" "$CONFIG" "$IMAGES"
stop_with TERM
check "SIGTERM ends the server with 0" test "$STATUS" -eq 0
check "its sockets are gone" sh -c '! ls "$1"/*.sock 2>/dev/null' - "$DIR"
no_panic

check "certificates are made" "$HERE/certificates.sh" "$DIR"
cat >"$CONFIG" <<EOF
[server]
control = "$CONTROL"
tls-certificates = "$DIR/pki"
[[tenant]]
name = "acme"
exports = ["a-*"]
certificates = ["*.acme.example"]
[[listen]]
name = "tls"
address = "127.0.0.1:0"
tls = "require"
tls-verify-peer = true
[[listen]]
name = "unverified"
unix = "$DIR/unverified.sock"
tls = "on"
[[export]]
name = "a-db"
file = { path = "$IMAGES/a-db.img" }
[[export]]
name = "a-web"
file = { path = "$IMAGES/a-web.img" }
certificates = ["spiffe://acme/*"]
[[export]]
name = "g-db"
file = { path = "$IMAGES/g-db.img" }
certificates = ["client"]
[[export]]
name = "shared"
file = { path = "$IMAGES/shared.img" }
EOF
serve_at --config "$CONFIG" --json
port=$(grep -o '127\.0\.0\.1:[0-9]*"' "$OUT" | head -n 1 | tr -dc '0-9:' | cut -d: -f2)
tls_lists() { # PKI NAMES
    [ "$(nbdinfo --list --json "nbds://localhost:$port/?tls-certificates=$DIR/$1" | tee /dev/stderr | grep -o '"export-name": "[^"]*"' | cut -d'"' -f4 | paste -sd' ')" = "$2" ]
}
check "a name of the kind DNS, and one of the kind URI" tls_lists acme "a-db a-web shared"
check "a common name" tls_lists pki "g-db shared"
tls_refused() { # PKI NAME
    ! nbdinfo "nbds://localhost:$port/$2?tls-certificates=$DIR/$1" 2>"$DIR/why" && sed "s/$2/X/g" "$DIR/why" >"$DIR/why.$2"
}
same_words() { tls_refused pki a-db && tls_refused pki nobody && diff "$DIR/why.a-db" "$DIR/why.nobody"; }
check "an export of another certificate is refused as an unknown one" same_words
clear_refused() { ! nbdinfo --list "nbd://localhost:$port/"; }
check "nothing is listed before the certificate" clear_refused
check "a listener that verifies no clients applies no lists" lists unverified "a-db a-web g-db shared"
check "the table says which listener verifies" says_like '^tls .* require, verified ' listeners
sed -i 's/tls-verify-peer = true/tls-verify-peer = false/' "$CONFIG"
warns_open() { "$HEADWORKS" check "$CONFIG" | tee /dev/stderr | grep -q 'certificates of a-db, a-web, g-db have no effect on TCP without tls-verify-peer'; }
check "check warns of TCP without verification" warns_open
stop_with TERM
check "SIGTERM ends the server with 0" test "$STATUS" -eq 0
no_panic

# On the command line, beside the ordinary socket, which goes on to offer everything.
serve --listen "name=part,unix=$DIR/part.sock,mode=640,exports=a+c*" a=mem:size=1M b=mem:size=1M c1=mem:size=1M
check "--listen offers its exports" lists part "a c1"
offers_all() { [ "$(nbdinfo --list --json "$URI" | grep -c '"export-name"')" = 3 ]; }
check "the ordinary socket offers all" offers_all
check "with its mode" test "$(stat -c %a "$DIR/part.sock")" = 640
stop_server
first_uri() { "$HEADWORKS" serve --listen "unix=$DIR/part.sock,exports=b" --run 'nbdinfo "$uri"' a=mem:size=1M b=mem:size=2M | grep -q 'export="b"'; }
check "--run gets the URI of the first export that is offered" first_uri
refused() { ! "$HEADWORKS" serve --listen "$1" mem:size=1M >"$DIR/said" 2>&1 && grep -q "$2" "$DIR/said"; }
check "a misspelled key is told the nearest" refused "unix=$DIR/x,tennant=a" 'the nearest is `tenant`'
check "an unknown owner is told" refused "unix=$DIR/x,owner=no-such-user" 'listener .*: owner: there is no user'

# Sockets are opened, and get their owners, before privileges are dropped; a reload opens them as the user.
if [ "$(id -u)" = 0 ]; then
    open=$(mktemp -d)
    chmod 755 "$open"
    cat >"$open/main.toml" <<EOF
[server]
user = "nobody"
[[listen]]
name = "own"
unix = "$open/own.sock"
mode = "0666"
owner = "daemon:daemon"
[[listen]]
name = "servers"
unix = "$open/servers.sock"
[[export]]
name = "m"
mem = { size = "1M" }
EOF
    serve_at --config "$open/main.toml"
    check "a socket has its owner" test "$(stat -c '%U %G %a' "$open/own.sock")" = "daemon daemon 666"
    check "another one is the user's" test "$(stat -c %U "$open/servers.sock")" = nobody
    printf '[[listen]]\nname = "late"\nunix = "%s/late.sock"\n' "$open" >>"$open/main.toml"
    kill -HUP "$SERVER"
    logged() { wait_until 20 grep -q "$1" "$LOG"; }
    check "a reload cannot open one in root's folder, and says so" logged 'listener late not opened: .*ermission denied'
    check "and goes on" logged 'configuration reloaded'
    check "its clients are served" nbdinfo "nbd+unix:///m?socket=$open/own.sock"
    stop_with TERM
    check "SIGTERM ends the server with 0" test "$STATUS" -eq 0
    no_panic
    rm -rf "$open"
else
    skip "owners of sockets, and dropped privileges" "only root can give a file away"
fi

export HW_SERVER=$HEADWORKS HW_ENGINE=$ENGINE
script listeners.py upgrade "$DIR" "$CONTROL" "$DIR/upgrade.toml" "$IMAGES"
