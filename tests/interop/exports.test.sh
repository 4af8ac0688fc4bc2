#!/usr/bin/env bash
# matrix: either
# Several exports, the default one, read-only ones, --run, --json; the wrappers for one's own tests.
. "$(dirname "$0")/lib.sh"

size_is() { [ "$(nbdinfo --size "$1")" = "$2" ]; }

serve "one=$(spec one 16M)" "two=mem:size=5M" "three=null:size=1T"
check "an export by name" size_is "$(at one)" $((16 << 20))
check "a second one" size_is "$(at two)" $((5 << 20))
check "a terabyte of null" size_is "$(at three)" $((1 << 40))
check "without a name: the first" size_is "$(at '')" $((16 << 20))
nbdinfo --list --json "$(at '')" >"$DIR/list.json"
check "nbdinfo --list names all" "$PYTHON" -c 'import json, sys
names = [e["export-name"] for e in json.load(open(sys.argv[1]))["exports"]]
print(names)
assert sorted(n for n in names if n) == ["one", "three", "two"]' "$DIR/list.json"
check "one uri: line for each" test "$(cat "$OUT" "$LOG" | grep -c 'uri: ')" -eq 3
pseudo_random 4 one >"$DIR/one"
pseudo_random 4 two >"$DIR/two"
check "both are written at the same time" bash -c 'nbdcopy "$1" "$2" & nbdcopy "$3" "$4" && wait $!' - \
    "$DIR/one" "$(at one)" "$DIR/two" "$(at two)"
check "they do not mix" bash -c 'nbdcopy "$2" - | cmp -n 4194304 - "$1" && nbdcopy "$4" - | cmp -n 4194304 - "$3"' - \
    "$DIR/one" "$(at one)" "$DIR/two" "$(at two)"
check "null reads zeros" qemu-io -f raw -c 'write -P 9 0 1M' -c 'read -P 0 0 1M' "$(at three)"
stop_server

# Two exports of one file are one disk, whichever path names it.
ln -sf "$IMAGES/one.img" "$IMAGES/link.img"
serve "a=file:path=$IMAGES/one.img" "b=file:path=$IMAGES/link.img"
check "two exports of one file show the same bytes" bash -c 'nbdcopy "$1" "$2" && nbdcopy "$3" - | cmp -n 4194304 - "$1"' - \
    "$DIR/two" "$(at a)" "$(at b)"
stop_server

serve -r "file:path=$IMAGES/one.img"
script readonly.py "$URI"
check "a read-only image is readable" bash -c 'nbdcopy "$2" - | cmp -n 4194304 - "$1"' - "$DIR/two" "$URI"
stop_server
check "and was not changed" cmp -n 4194304 "$IMAGES/one.img" "$DIR/two"

run_is() { # STATUS OUTPUT CMD
    local output
    output=$("$HEADWORKS" serve --engine "$ENGINE" -U - --run "$3" mem:size=5M 2>"$DIR/run.err")
    local status=$?
    echo "exit $status, said: $output"
    cat "$DIR/run.err"
    [ $status -eq "$1" ] && [ "$output" = "$2" ]
}
check "--run gives its command the \$uri" run_is 0 $((5 << 20)) 'nbdinfo --size "$uri"'
check "--run leaves standard output to its command" run_is 0 'only this' 'echo only this'
check "--run prints the start message on standard error" grep -q '^uri: nbd+unix:' "$DIR/run.err"
check "--run returns its command's status" run_is 3 '' 'exit 3'
check "--run returns 128 and the signal" run_is 137 '' 'kill -9 $$'
check "--run gives \$unixsocket" run_is 0 '' 'test -S "$unixsocket"'

serve --json "one=mem:size=5M" "two=null:size=1G"
check "--json at start" "$PYTHON" -c 'import json, sys
e = {x["name"]: x for x in json.loads(open(sys.argv[1]).readline())["exports"]}
assert e["one"]["size"] == 5 << 20 and e["two"]["size"] == 1 << 30 and "socket=" in e["one"]["uri"], e' "$OUT"
stop_server

# The wrappers do what they say.
serve "error:rate=100%,errno=EIO,op=write,of=mem:size=8M"
check "error: every write fails with EIO" bash -c '"$1" - "$2" <<PY
import errno, nbd, sys
h = nbd.NBD()
h.connect_uri(sys.argv[1])
h.pread(4096, 0)
try:
    h.pwrite(bytes(4096), 0)
except nbd.Error as e:
    sys.exit(e.errnum != errno.EIO)
sys.exit(1)
PY' - "$PYTHON" "$URI"
stop_server
serve "delay:write=400ms,of=mem:size=8M"
# The server finds both at once: it does not matter how slow this client is.
check "delay: a read overtakes a write on one connection" "$PYTHON" -c 'import nbd, os, signal, sys
h = nbd.NBD()
h.connect_uri(sys.argv[1])
order = []
os.kill(int(sys.argv[2]), signal.SIGSTOP)
h.aio_pwrite(bytes(4096), 0, lambda error: order.append("write") or 1)
h.aio_pread(nbd.Buffer(4096), 8192, lambda error: order.append("read") or 1)
os.kill(int(sys.argv[2]), signal.SIGCONT)
while h.aio_in_flight():
    h.poll(-1)
assert order == ["read", "write"], order' "$URI" "$SERVER"
check "delay: 32 writes at once take the time of one, not of 32" "$PYTHON" -c 'import nbd, sys, time
h = nbd.NBD()
h.connect_uri(sys.argv[1])
start = time.monotonic()
for i in range(32):
    h.aio_pwrite(bytes(4096), i * 65536)
while h.aio_in_flight():
    h.poll(-1)
took = time.monotonic() - start
assert 0.39 < took < 4, took' "$URI"
stop_server
serve --control "$DIR/ctl" "model:profile=virtual,latency=50ms,cache=none,of=mem:size=8M"
check "model: ten reads one after the other take ten times the disk's time, and bytes are kept" "$PYTHON" -c 'import nbd, sys, time
h = nbd.NBD()
h.connect_uri(sys.argv[1])
h.pwrite(b"x" * 4096, 1 << 20)
start = time.monotonic()
for i in range(10):
    assert h.pread(4096, 1 << 20) == b"x" * 4096
took = time.monotonic() - start
assert took >= 0.5, took' "$URI"
check "model: a disk is added and removed while the server runs" sh -c '
"$1" ctl "$2" add "drive=model:profile=hdd-7200,size=1G,of=mem:size=1M" >/dev/null && "$1" ctl "$2" remove drive >/dev/null' - "$HEADWORKS" "$DIR/ctl"
stop_server
check "model: the log says how late the answers were" grep -q 'model virtual: .* commands took .* by the model; half of the answers came at most' "$LOG"
printf 'base = "hdd-7200"\nturn = "11.1ms"\n' >"$DIR/mine.toml"
serve "model:profile=$DIR/mine.toml,of=mem:size=8M"
check "model: a disk of a file takes writes and flushes" "$PYTHON" -c 'import nbd, sys
h = nbd.NBD()
h.connect_uri(sys.argv[1])
assert h.can_flush()
h.pwrite(bytes(4096), 0)
h.flush()' "$URI"
stop_server
check "model: what is shown of a file is read again" sh -c '
"$1" disks show "$2/mine.toml" >"$2/shown.toml" && "$1" disks show "$2/shown.toml" | cmp - "$2/shown.toml" && grep -q "^turn = \"11100us\"$" "$2/shown.toml"' - "$HEADWORKS" "$DIR"
