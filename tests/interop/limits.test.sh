#!/usr/bin/env bash
# matrix: engine
# seconds: 16
# Limits of bytes and I/Os a second: what libnbd's clients get, live changes, neighbours, and what waits at a stop. Limits that
# several threads share, in the clear and through TLS, from a file that is read again, and in the process that replaces the server.
. "$(dirname "$0")/lib.sh"


serve --control "$CONTROL" --limit iops-read=1000000 "db=mem:size=64M,iops-total=200" "w=mem:size=64M,bps-write=4M,bps-write-max=8M" "free=mem:size=64M"
check "the limits are shown" says "200" get exports/db/iops-total
check "in cgroup's words" says "rbps=max wbps=4194304 riops=max wiops=max" get exports/w/io.max
check "those of the server, too" says "1000000" get server/iops-read
check "a burst" says "exports/db/iops-total-max = 400" set exports/db/iops-total-max 400
check "and none" says "exports/db/iops-total-max = none" set exports/db/iops-total-max 0
check "too low a rate" fails 1 'least is 4096.*EINVAL' set exports/w/bps-read 5
check "a burst below the limit" fails 1 'must be more than' set exports/w/bps-write-max 1M
check "a misspelled limit" fails 1 'exports/w/bps-write' set exports/w/bps-wirte 5M
script limits.py "$(at db)" "$(at w)" "$(at free)"
check "why names the limit" bash -c '"$1" ctl "$2" why db | tee /dev/stderr | grep -q "limit (export db: iops-total 200)"' - "$HEADWORKS" "$CONTROL"
check "a limit is lifted for those that wait" "$PYTHON" "$HERE/limits.py" lifted "$(at db)" "$HEADWORKS" "$CONTROL"
check "cgroup's words are set" says "exports/db/io.max = rbps=max wbps=max riops=50 wiops=max" set exports/db/io.max riops=50
check "an export is removed while its clients wait" "$PYTHON" "$HERE/limits.py" removed "$(at db)" "$HEADWORKS" "$CONTROL"
check "a client that waits for hours disconnects nobody else" says "exports/w/bps-write = 4K" set exports/w/bps-write 4096
check "and the server stops at once" "$PYTHON" "$HERE/limits.py" stopped "$(at w)" "$SERVER"
stop_server
check "the server ended well" test "$STATUS" -eq 0

# Two exports of a tenant on a thread each, and one without a limit.
check "certificates are made" "$HERE/certificates.sh" "$DIR"
pki=$DIR/pki
tls_at() { echo "nbds+unix:///$1?socket=$SOCKET&tls-certificates=$pki"; }
CONFIG=$DIR/main.toml
configure() { # LIMITS-OF-THE-TENANT
    cat >"$CONFIG" <<EOF
[[tenant]]
name = "acme"
$1
[[export]]
name = "a"
tenant = "acme"
file = { path = "$IMAGES/a.img" }
[[export]]
name = "b"
tenant = "acme"
file = { path = "$IMAGES/b.img" }
[[export]]
name = "free"
file = { path = "$IMAGES/free.img" }
EOF
}
truncate -s 16M "$IMAGES/a.img" "$IMAGES/b.img" "$IMAGES/free.img"
configure 'iops-total = 200'
serve --config "$CONFIG" --control "$CONTROL" --shards 2 --tls on --tls-certificates "$pki" --pid-file "$DIR/pid"
check "clients on two threads share the limit of a tenant" "$PYTHON" "$HERE/limits.py" together 1.4 "$(at a)" "$(at b)"
check "one of them alone has it" "$PYTHON" "$HERE/limits.py" together 1.4 "$(at b)"
check "also through TLS" "$PYTHON" "$HERE/limits.py" together 1.4 "$(tls_at a)" "$(tls_at b)"
shows() { # EXPORT
    ctl why "$1" | tee /dev/stderr | grep -q "limit (tenant acme: iops-total 200)"
}
check "why names the tenant's limit on its own thread" shows a
check "and on another" shows b
check "a limit of the server holds on both threads" says "server/iops-read = 200" set server/iops-read 200
check "it has no tenant's limit below it" says "tenants/acme/iops-total = none" set tenants/acme/iops-total 0
check "and is shared by three clients" "$PYTHON" "$HERE/limits.py" together 1.4 "$(at a)" "$(tls_at b)" "$(at free)"
check "it is lifted" says "server/iops-read = none" set server/iops-read 0
configure 'iops-total = 100'
kill -HUP "$SERVER"
check "a reload changes the tenant's limit" wait_until 10 says "100" get tenants/acme/iops-total
check "on both threads" "$PYTHON" "$HERE/limits.py" together 2.9 "$(at a)" "$(tls_at b)"
configure ''
kill -HUP "$SERVER"
check "a reload lifts it" wait_until 10 says "none" get tenants/acme/iops-total
check "an upgrade takes along what waits" "$PYTHON" "$HERE/limits.py" handed-over "$(at a)" "$(at b)" "$HEADWORKS" "$CONTROL" || exit 1
wait "$SERVER"
STATUS=$?
check "the old process ended well" test "$STATUS" -eq 0
SERVER=$(cat "$DIR/pid")
check "set tenants/acme/iops-total 200" says "tenants/acme/iops-total = 200" set tenants/acme/iops-total 200
check "the new process limits both threads" "$PYTHON" "$HERE/limits.py" together 1.4 "$(at a)" "$(tls_at b)"
check "and stops at once" "$PYTHON" "$HERE/limits.py" stopped "$(at a)" "$SERVER"
SERVER=0
no_panic
