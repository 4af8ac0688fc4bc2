#!/usr/bin/env bash
# matrix: once
# seconds: 28
# Where requests spend their time: ctl latency and why, top, and the page for Prometheus; slow and hostile scrapers.
. "$(dirname "$0")/lib.sh"

load() { # EXPORT ARGUMENTS...: asks for some time, then is gone
    "$HEADWORKS" bench --uri "$(at "$1")" --overwrite --bs 4k "${@:2}" >"$DIR/bench" 2>&1 || { cat "$DIR/bench"; return 1; }
}
blames() { # STAGE EXPORT: the sentence names it first, and the report its share
    local said
    said=$(ctl why "$2") || return 1
    echo "$said"
    grep -Eq "spent [0-9]+ % of their time in $1 \(" <<<"$said" && ctl why "$2" --json |
        "$PYTHON" -c 'import json, sys; r = json.load(sys.stdin); s = r["shares"]; assert max(s, key=s.get) == sys.argv[1] and s[sys.argv[1]] > 0.5, s
assert r["requests"] >= r["considered"] > 0 and len(r["worst"]) > 0, r' "$1"
}

serve --control "$CONTROL" --metrics 127.0.0.1:0 "slow=delay:read=50ms,of=mem:size=16M" "fast=mem:size=16M" "idle=null:size=1M"
PAGE=$(sed -n 's/^metrics: //p' "$OUT")
check "the start message names the page" test -n "$PAGE"
tells() { grep -Eq " export $1: $2" "$LOG"; }
kill -USR1 "$SERVER"
for name in slow fast idle; do
    check "SIGUSR1 before anybody came: a line for $name" wait_until 10 tells $name 'no request has reached its device yet'
done
# One at a time: with more the search for the depth of the device holds some for a turn, and why says so, rightly.
check "reads of a slow device" load slow --rw randread --iodepth 1 --runtime 1
kill -USR1 "$SERVER"
check "SIGUSR1 afterwards: the line of what was asked" wait_until 10 tells slow 'read: [0-9]+ bios in '
check "why says device" blames device slow
check "four reads at a time" load slow --rw randread --iodepth 4 --runtime 1
alone() { # They wait for each other, in the device or before it: no other export is named, no other stage, and no tag, of which most are free
    ctl why slow --json | tee /dev/stderr | "$PYTHON" -c 'import json, sys; r = json.load(sys.stdin); s = r["shares"]
assert s["tag"] + s["device"] > 0.98 and not r["by_whom"]["guilty"] and "256 tags" not in r["sentence"], r'
}
check "why blames no other export" alone
check "an export that nobody uses" sh -c '"$1" ctl "$2" why idle | grep -q "^idle: no request completed"' - "$HEADWORKS" "$CONTROL"
check "no such export: one sentence" sh -c '! "$1" ctl "$2" why nobody 2>&1 >/dev/null | grep -qv "^headworks: error: there is no export .nobody.; there are slow, fast, idle"' - "$HEADWORKS" "$CONTROL"
ctl set exports/slow/queue/nr_requests 1 >/dev/null
check "more reads than tags" load slow --rw randread --iodepth 16 --runtime 1
check "why says tag" blames tag slow
check "the hint names nr_requests" sh -c '"$1" ctl "$2" why slow | grep -q "hint: tag: hw0/queue/nr_requests (1 now)"' - "$HEADWORKS" "$CONTROL"

# With bfq requests wait in the elevator, which tells what it served.
ctl set exports/slow/queue/scheduler bfq >/dev/null
ctl set exports/slow/queue/hw_inflight_kb 4 >/dev/null
"$HEADWORKS" bench --uri "$(at slow)" --bs 4k --rw randread --iodepth 16 --runtime 90 >"$DIR/bench" 2>&1 &
LOAD=$!
sees_slot() { # a queue of one connection with requests; its weight is raised, because it is new
    ctl get exports/slow/queue/iosched/state --json | tee /dev/stderr | "$PYTHON" -c 'import json, sys; state, = json.load(sys.stdin).values()
flow = state["flows"][0]
assert flow["export"] == "slow" and flow["connection"] and flow["busy"] and flow["waiting"] + flow["in_device"] > 0, flow
assert flow["raise"] == "interactive" and flow["weight"] == 1200 and flow["served"]["bytes"] > 0, flow
assert state["busy"] == 1 and state["exports"][0]["export"] == "slow", state'
}
check "the state shows the queue of a connection" wait_until 20 sees_slot
state_table() { ctl get exports/slow/queue/iosched/state | tee /dev/stderr | grep -Eq '^slow +[0-9]+ +be,4 +1200 +interactive +'; }
check "and as a table" state_table
kill $LOAD && wait $LOAD 2>/dev/null
check "more requests than the device takes" load slow --rw randread --iodepth 16 --runtime 1
check "why says sched" blames sched slow
names_served() {
    ctl why slow | tee /dev/stderr | grep -q 'the elevator bfq served others first: in the last [0-9]* s it served export slow [0-9]* KiB' &&
        ctl why slow --json | "$PYTHON" -c 'import json, sys; served = json.load(sys.stdin)["served_meanwhile"]
assert served["exports"][0]["export"] == "export slow" and served["exports"][0]["bytes"] > 0, served'
}
check "and what was served meanwhile" names_served

# What top shows is what happened: it looks while the load lasts.
"$HEADWORKS" bench --uri "$(at fast)" --overwrite --bs 4k --rw randwrite --iodepth 4 --runtime 90 >"$DIR/bench" 2>&1 &
LOAD=$!
is_loaded() { ctl latency | grep -q '^fast '; }
check "a load to look at" wait_until 20 is_loaded
script observability.py top "$HEADWORKS" "$CONTROL"
check "the load lasted" kill $LOAD
wait $LOAD
nobody_is_there() { [ "$(ctl connections --json)" = "[]" ]; }
check "its connection is gone" wait_until 20 nobody_is_there
script observability.py silent "$HEADWORKS" "$CONTROL" "$SERVER"
check "top without a terminal is lines" sh -c '"$1" top "$2" --batch 1 | grep -q "^fast  *[0-9]"' - "$HEADWORKS" "$CONTROL"
check "a server that is not there: one sentence" sh -c '! "$1" top "$2.none" --batch 1 2>&1 >/dev/null | grep -qv "^headworks: error: cannot connect to the control socket"' - "$HEADWORKS" "$CONTROL"
check "ctl latency has a row of each export that was used" sh -c 'test "$("$1" ctl "$2" latency | tail -n +2 | cut -d" " -f1 | sort -u | tr "\n" " ")" = "fast slow "' - "$HEADWORKS" "$CONTROL"

script observability.py page "$HEADWORKS" "$CONTROL" "$PAGE"
script observability.py hostile "$PAGE"
stop_server

# Errors, flushes and discards.
CACHE=16M
serve --control "$CONTROL" --metrics 127.0.0.1:0 "bad=error:rate=100%,op=read,of=mem:size=1M" "good=file:path=$DIR/good.img,size=1M"
PAGE=$(sed -n 's/^metrics: //p' "$OUT")
"$PYTHON" - "$(at bad)" "$(at good)" <<'PY'
import sys, nbd
bad, good = nbd.NBD(), nbd.NBD()
bad.connect_uri(sys.argv[1])
good.connect_uri(sys.argv[2])
for _ in range(8):
    try:
        bad.pread(512, 0)
    except nbd.Error:
        pass
good.pwrite(b"x" * 4096, 0)
good.flush()
good.trim(4096, 65536)
PY
script observability.py failing "$HEADWORKS" "$CONTROL" "$PAGE"
# One of its exports again, so that the page has the metrics of a remote.
ctl add "again=nbd:uri=$(at good)" >/dev/null
script observability.py dashboard "$PAGE"
ctl remove again --force >/dev/null
stop_server

# Flushes that are slow, of an export whose writes are not.
serve --control "$CONTROL" --metrics 127.0.0.1:0 "db=delay:flush=30ms,of=file:path=$DIR/good.img,size=1M"
PAGE=$(sed -n 's/^metrics: //p' "$OUT")
script observability.py flushes "$HEADWORKS" "$CONTROL" "$PAGE" "$(at db)"
stop_server
CACHE=0

# More than a shard tells in one turn.
exports=()
for number in {0..69}; do
    exports+=("e$number=file:path=$DIR/e$number.img,size=1M")
done
serve --control "$CONTROL" --metrics 127.0.0.1:0 --shards 2 --spread "${exports[@]}"
PAGE=$(sed -n 's/^metrics: //p' "$OUT")
script observability.py many "$HEADWORKS" "$CONTROL" "$PAGE" "$SOCKET" 70
stop_server

# A target that cannot be kept, and bulk that waits for one on the same device.
for name in db bulk; do
    truncate -s 64M "$DIR/$name.img"
done
serve --control "$CONTROL" --metrics 127.0.0.1:0 --tenant acme,latency-target=20us "db=file:path=$DIR/db.img,tenant=acme" \
    "bulk=file:path=$DIR/bulk.img" "tight=delay:read=5ms,latency-target=1ms,of=mem:size=16M"
PAGE=$(sed -n 's/^metrics: //p' "$OUT")
check "reads that a device cannot answer within their target" load tight --rw randread --iodepth 1 --runtime 1
log_says() { grep -q 'the latency target 1ms of export tight is below twice the smallest latency seen on hw[0-9]*, [0-9]* us: .* choose at least' "$LOG"; }
check "the log says so once it is known" wait_until 10 log_says
check "once, and of the exports on that device alone" test "$(grep -c 'is below twice the smallest latency seen on' "$LOG")" = 1
check "and why" sh -c '"$1" ctl "$2" why tight | grep -q "^latency target 1 ms of export tight: .* missed it (.*; it is below twice"' - "$HEADWORKS" "$CONTROL"
check "ctl refuses such a target with the figure" sh -c '! "$1" ctl "$2" set exports/tight/latency-target 2ms 2>&1 | tee /dev/stderr | grep -qv "\`2ms\` is below twice the smallest latency seen on hw[0-9]*, [0-9]* us; choose at least .*EINVAL"' - "$HEADWORKS" "$CONTROL"
check "and takes one that can be kept" ctl set exports/tight/latency-target 1s
load db --rw randread --iodepth 4 --runtime 4 &
LOAD=$!
check "bulk beside a target" "$HEADWORKS" bench --uri "$(at bulk)" --bs 1M --rw read --iodepth 32 --threads 4 --runtime 3
wait $LOAD
check "why names the target that bulk waits for" sh -c '"$1" ctl "$2" why bulk | tee /dev/stderr | grep -q "requests have waited for the latency target 20 us of tenant acme: hw0 takes at most .* of others at once"' - "$HEADWORKS" "$CONTROL"
check "and what missed it" sh -c '"$1" ctl "$2" why db | tee /dev/stderr | grep -q "^latency target 20 us of tenant acme: .* small requests missed it"' - "$HEADWORKS" "$CONTROL"
ctl why bulk --json >"$DIR/why.json"
check "also for programs" "$PYTHON" -c 'import json, sys
held = json.load(open(sys.argv[1]))["held_for_target"]
assert held["target_us"] == 20 and held["of"] == ["tenant acme"] and held["requests"] > 0, held' "$DIR/why.json"
script observability.py targets "$PAGE"
stop_server

# Writers side by side, whose requests meet in the queue.
serve --metrics 127.0.0.1:0 --scheduler mq-deadline --queue-depth 1 "db=delay:all=3ms,of=mem:size=64M"
load db --rw write --iodepth 128 --threads 4 --runtime 1 &
LOAD=$!
script observability.py counters "$(sed -n 's/^metrics: //p' "$OUT")" $LOAD
wait $LOAD
stop_server

# A writer that dirties faster than a device writes.
CACHE=16M
serve --control "$CONTROL" --set vm/dirty_bytes=1M "db=delay:write=20ms,of=file:path=$DIR/db.img,size=64M"
check "writes into a small dirty limit" load db --rw randwrite --iodepth 8 --runtime 2
check "why says dirty" blames dirty db
stop_server
check "an address is asked for" sh -c '"$1" serve --metrics nowhere null:size=1M 2>&1 | grep -q "such as 127.0.0.1:9100"' - "$HEADWORKS"
