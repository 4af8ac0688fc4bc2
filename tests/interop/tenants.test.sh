#!/usr/bin/env bash
# matrix: once
# Tenants: configuration, the control socket, classes, and drop-ins.
. "$(dirname "$0")/lib.sh"

CONFIG=$DIR/main.toml
has_row() { ctl tenants | tee /dev/stderr | grep -Eq "$1"; }

cat >"$CONFIG" <<EOF
[[tenant]]
name = "acme"
weight = 400
ioprio-max = "be:2"
exports = ["web-*"]
[[tenant]]
name = "globex"
[[export]]
name = "db"
tenant = "acme"
ioprio = "rt:0"
mem = { size = "16M" }
[[export]]
name = "web-1"
mem = { size = "16M" }
[[export]]
name = "logs"
tenant = "globex"
mem = { size = "16M" }
[[export]]
name = "free"
mem = { size = "16M" }
EOF
sed 's/tenant = "globex"/tenant = "globx"/' "$CONFIG" >"$CONFIG.wrong"
misspelled() { ! "$HEADWORKS" check "$CONFIG.wrong" >"$DIR/said" 2>&1; cat "$DIR/said"; grep -q 'no tenant `globx`; the nearest is `globex`' "$DIR/said"; }
check "a tenant that is not defined is told the nearest" misspelled

serve --config "$CONFIG" --control "$CONTROL" --tenant globex,weight=50
check "tenants by name and by pattern" says "db web-1" get tenants/acme/exports
check "the command line changes a value" says 50 get tenants/globex/weight
check "also by the name of a cgroup" says 50 get tenants/globex/io.weight
check "an export without one" says none get exports/free/tenant
check "a weight" says "tenants/acme/io.weight = 200" set tenants/acme/io.weight 200
check "is one value" says 200 get tenants/acme/weight
check "a value out of range" fails 1 '1 to 10000.*EINVAL' set tenants/acme/weight 0
check "a tenant with exports stays" fails 1 'has exports, such as logs.*EBUSY' remove-tenant globex
check "add one" says "initech: added" add-tenant initech,weight=7
check "not twice" fails 1 'EEXIST' add-tenant initech
check "one without words" says "plain: added" add-tenant plain
check "which diff shows with its weight" says_like '^tenants/plain: weight=100, configured none$' diff
check "and it goes again" says "plain: removed" remove-tenant plain
check "move an export" says "exports/free/tenant = initech" set exports/free/tenant initech
check "an unknown one" fails 1 'the nearest is .initech.*ENOENT' set exports/free/tenant initec
check "the table" has_row '^initech +7 '
check "a class above the highest is lowered" "$PYTHON" -c '
import json, nbd, socket, sys
def ask(method, **params):
    s = socket.socket(socket.AF_UNIX)
    s.connect(sys.argv[1])
    s.sendall((json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}) + "\n").encode())
    return json.loads(s.makefile().readline())["result"]
h = nbd.NBD()
h.connect_uri(sys.argv[2])
h.pread(4096, 0)
def expect(wanted):
    found = [row["ioprio"] for row in ask("connections") if row["export"] == "db"]
    assert found == [wanted], (found, wanted)
expect("be,2")
ask("set", path="tenants/acme/ioprio-max", value="be:5")
expect("be,5")
ask("set", path="tenants/acme/ioprio-max", value="none")
expect("rt,0")
ask("set", path="tenants/globex/ioprio-max", value="idle")
ask("set", path="exports/db/tenant", value="globex")
expect("idle,4")
ask("set", path="exports/db/tenant", value="none")
expect("rt,0")
h.shutdown()' "$CONTROL" "nbd+unix:///db?socket=$SOCKET"
check "a latency target" says "exports/db/latency-target = 5ms" set exports/db/latency-target 5ms
check "of a tenant" says "tenants/acme/latency-target = 250us" set tenants/acme/latency-target 250us
check "by its old spelling" says 5ms get exports/db/latency_target
check "too short" fails 1 '20us to 60s.*EINVAL' set exports/db/latency-target 1us
check "by the name of a cgroup" says "target=5000" get exports/db/io.latency
check "which sets it, too" says "tenants/acme/io.latency = target=400" set tenants/acme/io.latency target=400
check "as one value" says 400us get tenants/acme/latency-target
check "not a line of a cgroup" fails 1 'target=MICROSECONDS or target=max.*EINVAL' set tenants/acme/io.latency 400
ctl set tenants/acme/io.latency target=250 >/dev/null
check "the table shows it" has_row '^acme .* 250us$'
counts() { ctl get tenants/acme/io.stat | tee /dev/stderr | grep -Eq "$1"; }
check "counters of a cgroup, a line for each device" counts '^hw[0-9]+ rbytes=[0-9]+ wbytes=0 rios=[0-9]+ wios=0 dbytes=0 dios=0 hw_dirty=0 hw_limited_usec=0 hw_limited=0 hw_wait_usec=[0-9]+$'
check "which cannot be set" fails 1 'EACCES' set tenants/acme/io.stat rbytes=0
check "save" ctl save
# Unchanged values are left to the file, which may be edited later.
acme() { sed -n '/^name = "acme"/,/^\[\[/p' "${CONFIG%.toml}.d/99-ctl.toml" | tee /dev/stderr; }
check "which says what was changed of a tenant" bash -c 'grep -q "^weight = 200" <<<"$1" && grep -q "^latency-target = " <<<"$1"' - "$(acme)"
check "and no more" bash -c '! grep -Eq "^(cache-max|cache-min|dirty|exports) = " <<<"$1"' - "$(acme)"
stop_server

serve --config "$CONFIG" --control "$CONTROL"
check "saved latency targets" says 5ms get exports/db/latency-target
check "and of a tenant" says 250us get tenants/acme/latency-target
check "a value that was taken back to none" says none get tenants/acme/ioprio-max
check "a saved weight" says 200 get tenants/acme/weight
check "a saved tenant and its export" says free get tenants/initech/exports
check "an export that has none now" says none get exports/db/tenant
check "an export of the pattern keeps its tenant" says acme get exports/web-1/tenant
stop_server

# Twenty tenants by a template, and one more while the server runs: disks on one base, and a socket for each.
truncate -s 16M "$DIR/golden.img"
cat >"$CONFIG" <<EOF2
[[template]]
names = ["t01..t20"]
[template.tenant]
weight = 200
[template.export]
overlay = { path = "$DIR/{}.hwo", base = "$DIR/golden.img", size = "32M" }
[template.listen]
unix = "$DIR/{}.sock"
EOF2
rm -rf "${CONFIG%.toml}.d"
offers() { nbdinfo --list "nbd+unix:///?socket=$DIR/$1.sock" | grep ^export= | tee /dev/stderr | diff - <(printf 'export="%s":\n' "$1"); }
bytes() { [ "$(nbdinfo --size "nbd+unix:///?socket=$DIR/$1.sock" | tee /dev/stderr)" -eq "$2" ]; }
check "a template is checked, and nothing is made" bash -c '"$1" check "$2" && ! ls "$3"/*.hwo' - "$HEADWORKS" "$CONFIG" "$DIR"
serve --config "$CONFIG" --control "$CONTROL"
check "the seventh has its disk on its socket" offers t07
check "as large as it says" bytes t07 33554432
check "its share" says 200 get tenants/t07/weight
check "one more in one command" says_like '^t21: listens at .*/t21.sock$' \
    add-tenant t21 --weight 300 --base "$DIR/golden.img" --size 64M --socket "$DIR/t21.sock,mode=660"
check "with its disk" offers t21
check "of its size" bytes t21 67108864
check "and mode" bash -c '[ "$(stat -c %a "$1")" = 660 ]' - "$DIR/t21.sock"
check "refused as a whole" fails 1 'no such directory' add-tenant t22 --disk "$DIR/t22.img" --size 1M --socket "$DIR/no/t22.sock"
check "nothing of it stays" fails 1 'there is no tenant .t22.' remove-tenant t22
check "a reload takes nothing away" says "nothing changed" reload
check "all of it is saved" ctl save
ctl upgrade >"$DIR/said"
SERVER=$(sed -n 's/^upgraded: process \([0-9]*\) .*/\1/p' "$DIR/said")
check "with an upgrade between" test -n "$SERVER"
check "and the file loaded" ctl reload
check "a listener of a file is taken away, too" says "t21: removed" remove-listener t21
check "which the file has again" says_like '^listener t21 listens at' reload
check "a pattern that fits nothing stops no thaw" bash -c '"$0" ctl "$1" freeze t01 t02 && ! "$0" ctl "$1" thaw "x*" t01 t02 2>"$2" && grep -q "no export fits x.*; thawed: t01, t02" "$2" && ! "$0" ctl "$1" thaw t01' "$HEADWORKS" "$CONTROL" "$DIR/said"
# It is no child of this script.
stop_with TERM
check "it ends and takes its sockets with it" bash -c '! ls "$1"/*.sock "$2"' - "$DIR" "$SOCKET"
serve --config "$CONFIG" --control "$CONTROL"
check "a restart has what was saved" offers t21
stop_server

# Parts of the page cache: a working set that a scan of others leaves, a tenant that evicts its own, and a cap of dirty data.
cat >"$CONFIG.parts" <<EOF2
[server]
cache = "64M"
[[tenant]]
name = "a"
cache-min = "40M"
[[tenant]]
name = "b"
cache-min = "40M"
[[export]]
name = "x"
mem = { size = "16M" }
EOF2
refuses() { ! "$HEADWORKS" check "$CONFIG.parts" >"$DIR/said" 2>&1; cat "$DIR/said"; grep -q 'cache-min are 80 MiB in all, more than the cache of 64 MiB' "$DIR/said"; }
check "minimums beyond the cache are refused" refuses
serve --cache 64M --control "$CONTROL" --tenant acme,cache-min=16M,dirty=4M --tenant globex,cache-max=8M \
    hot=mem:size=64M,cache=writeback,tenant=acme scan=mem:size=256M,cache=writeback,tenant=globex \
    other=mem:size=256M,cache=writeback slow=delay:write=2ms,cache=writeback,tenant=acme,of=mem:size=64M
check "the minimum" says 16M get tenants/acme/cache-min
check "the sum of minimums is kept while it runs" fails 1 '80 MiB in all, more than the cache of 64 MiB.*EINVAL' set tenants/acme/cache-min 80M
check "a minimum above the maximum" fails 1 'cache-min 16M is more than cache-max 8M.*EINVAL' set tenants/globex/cache-min 16M
check "a cap" says "tenants/globex/dirty = 1M" set tenants/globex/dirty 1M
check "of an export" says "exports/other/dirty = 64K" set exports/other/dirty 64K
check "too little" fails 1 '64K and more.*EINVAL' set exports/other/dirty 1K
check "the working set stays, the scan keeps to its maximum, dirty data to its cap" "$PYTHON" -c '
import json, nbd, socket, sys
M = 1 << 20
def ask(method, **params):
    s = socket.socket(socket.AF_UNIX)
    s.connect(sys.argv[1])
    s.sendall((json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}) + "\n").encode())
    return json.loads(s.makefile().readline())["result"]
def value(path): return ask("get", path=path)[path]
def client(name):
    h = nbd.NBD()
    h.connect_uri("nbd+unix:///%s?socket=%s" % (name, sys.argv[2]))
    return h
def scan(h, end, times=1):
    for at in range(0, end, M // 4):
        for _ in range(times): h.pread(M // 4, at)
hot, tide, other, slow = map(client, ["hot", "scan", "other", "slow"])
scan(hot, 12 * M, 2)
for h in (other, tide): scan(h, 256 * M, 2)
cached = {name: value("tenants/%s/cached-bytes" % name) for name in ("acme", "globex")}
print(cached)
assert cached["acme"] >= 12 * M and 4 * M < cached["globex"] <= 8 * M, cached
before = ask("stats")["cache"]
scan(hot, 12 * M)
after = ask("stats")["cache"]
missed = after["misses"] - before["misses"]
assert missed < 300, missed    # of 3072 blocks: beside them the part has what was read ahead
# Writes in flight all the time, 256 KiB each, to a device that takes 2 ms for each command.
most, pending, offset = 0, [], 0
for turn in range(400):
    while len(pending) < 32 and offset < 64 * M:
        pending.append(slow.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(b"x" * (M // 4))), offset))
        offset += M // 4
    slow.poll(10)
    pending = [cookie for cookie in pending if not slow.aio_command_completed(cookie)]
    if turn % 10 == 0: most = max(most, value("tenants/acme/dirty-bytes"))
    if not pending and offset >= 64 * M: break
print(turn, most, offset, len(pending))
assert 2 * M < most <= 4 * M and offset >= 8 * M, (most, offset)
while pending:
    slow.poll(1000)
    pending = [cookie for cookie in pending if not slow.aio_command_completed(cookie)]
for h in (hot, tide, other, slow): h.shutdown()' "$CONTROL" "$SOCKET"
stop_server
