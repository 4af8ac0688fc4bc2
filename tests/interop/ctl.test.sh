#!/usr/bin/env bash
# matrix: either
# The control socket and `headworks ctl`: names and values, switches under load, statistics, discarding, bad clients.
. "$(dirname "$0")/lib.sh"


# Without a name the only export is called default.
serve --control "$CONTROL" mem:size=16M
check "the control socket is the owner's alone" test "$(stat -c %a "$CONTROL")" = 600
check "the start message names it" grep -q "^control: .*$CONTROL" "$OUT"
check "a second server is refused the socket" bash -c '! "$1" serve -U - --control "$2" mem:size=1M --run true 2>&1 >/dev/null |
    tee /dev/stderr | grep -qv "^headworks: error: control: another server listens"' - "$HEADWORKS" "$CONTROL"
script ctl.py rpc "$CONTROL"
script ctl.py harm "$CONTROL"
check "nobody there" bash -c '! "$1" ctl "$2.none" get 2>&1 | tee /dev/stderr | grep -qv "^headworks: error: cannot connect"' - "$HEADWORKS" "$CONTROL"
# Which socket: a variable, a file here, the name of a service.
check "HEADWORKS_CONTROL names the socket" env HEADWORKS_CONTROL="$CONTROL" "$HEADWORKS" ctl get hw0/queue/nr_requests
check "for top, too" env HEADWORKS_CONTROL="$CONTROL" "$HEADWORKS" top --batch 1
check "a word names a socket file here" env -C "$DIR" "$HEADWORKS" ctl "$(basename "$CONTROL")" get hw0/queue/nr_requests
refused() { # STATUS PATTERN COMMAND...: one line, which says what is right
    local output status
    output=$("${@:3}" 2>&1)
    status=$?
    echo "exit $status: $output"
    [ $status -eq "$1" ] && [ "$(wc -l <<<"$output")" -eq 1 ] && grep -Eq -- "$2" <<<"$output"
}
check "another word is a service" refused 1 'socket /run/headworks/no-such\.ctl: .*HEADWORKS_CONTROL' "$HEADWORKS" ctl no-such get
check "a misspelled command is told the nearest" refused 2 'neither a command nor.*`exports`' "$HEADWORKS" ctl exprots
check "with what follows it, too" refused 2 'neither a command nor.*`stats`' "$HEADWORKS" ctl stat hw0
check "no value: exit 2" fails 2 'PATH=VALUE' set hw0/queue/nr_requests
stop_server
check "the control socket is gone, too" test ! -e "$CONTROL"

# A socket that a dead server left.
"$PYTHON" -c 'import socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1])' "$CONTROL"
serve --control "$CONTROL" "db=mem:size=64M,weight=400,ioprio=rt:0" "logs=null:size=1G" "slow=delay:write=1ms,weight=7,of=null:size=1G"
script control_methods.py "$CONTROL" "$HERE/../../packaging/man/headworks-control.7" "$(at db)"
ctl set exports/db/weight 400 >/dev/null
check "weight and class are shown at the start" grep -q '^export: db: .*, weight 400, class rt,0$' "$OUT"
check "the ordinary ones are not" grep -q '^export: logs: null, 1 GiB$' "$OUT"
check "a wrapped export has them, too" says 7 get exports/slow/weight
check "get exports" says "exports/db/cache = none
exports/db/device = hw0
exports/db/io.latency = target=max
exports/db/io.weight = 400
exports/db/ioprio = rt,0
exports/db/latency-target = none
exports/db/on-error = hold
exports/db/read-only = 0
exports/db/tenant = none
exports/db/weight = 400" get exports/db
check "set a weight" says "exports/db/weight = 50" set exports/db/weight 50
check "and it is set" says 50 get exports/db/weight
check "a class, with PATH=VALUE" says "exports/logs/ioprio = idle,4" set exports/logs/ioprio=idle
check "several values" says "exports/db/weight = 51
exports/logs/ioprio = idle,4
exports/logs/weight = 52" set exports/db/weight 51 exports/logs/weight=52 exports/logs/ioprio idle
check "a wrong one among them" fails 1 'logs/weight.*1\.\.=10000.*EINVAL' set exports/db/weight 60 exports/logs/weight many
check "and none is set" says 51 get exports/db/weight
check "a pattern" says "exports/db/ioprio = be,3
exports/logs/ioprio = be,3
exports/slow/ioprio = be,3" set 'exports/*/ioprio' be:3
check "several patterns" says "exports/db/weight = 50
exports/logs/ioprio = idle,4" set 'exports/?b/weight' 50 'exports/lo*/ioprio' idle
check "a pattern that fits nothing" fails 1 'nothing fits exports/dbb\*/weight; the nearest are exports/db/weight.*ENOENT' set 'exports/dbb*/weight' 50
check "a value out of range" fails 1 'not within 1\.\.=4096.*EINVAL' set hw1/queue/nr_requests 5000
check "and nothing changed" says 256 get hw1/queue/nr_requests
check "a wrong word" fails 1 'none, mq-deadline.*EINVAL' set hw1/queue/scheduler cfq
check "bfq" says "hw1/queue/scheduler = none mq-deadline [bfq]" set hw1/queue/scheduler bfq
check "a scheduler without a state" fails 1 'scheduler none has no state.*ENOENT' get hw0/queue/iosched/state
idle_state() { # fresh: no queue, no slot
    ctl get hw1/queue/iosched/state | tee /dev/stderr | grep -q '^in service: none$' && ctl get exports/logs/queue/iosched/state --json |
        "$PYTHON" -c 'import json, sys; state, = json.load(sys.stdin).values()
assert state["known"] == 0 and state["flows"] == [] and state["in_service"] is None, state'
}
check "the state of bfq" idle_state
check "it cannot be set" fails 1 'EACCES|EPERM|EINVAL' set hw1/queue/iosched/state 1
hides_state() { ! ctl get hw1 | grep -q iosched/state; }
check "a list of values leaves it out" hides_state
check "which has no async_depth" fails 1 'scheduler bfq.*EINVAL' set hw1/queue/iosched/async_depth 9
check "and back" says "hw1/queue/scheduler = [none] mq-deadline bfq" set hw1/queue/scheduler none
check "rotational is a fact that can be set" says "hw1/queue/rotational = 1" set hw1/queue/rotational 1
check "a wrong name is told the nearest" fails 1 'hw1/queue/scheduler.*ENOENT' get hw1/queue/schedular
check "a fact of the device" fails 1 'EACCES' set hw1/queue/write_cache 1
check "write_cache as sysfs has it" says "write through" get hw1/queue/write_cache
check "an export's queue is its device's" says "$(ctl get hw1/queue/max_sectors_kb)" get exports/logs/queue/max_sectors_kb

# A connection's class is its export's until it has its own.
"$PYTHON" -c 'import nbd, sys
h = nbd.NBD()
h.connect_uri(sys.argv[1])
print("there", flush=True)
sys.stdin.read()' "$(at logs)" >"$DIR/there" 2>&1 < <(exec tail -f --pid=$$ /dev/null) &
client=$!
wait_until 10 grep -q there "$DIR/there"
id=$(ctl connections --json | "$PYTHON" -c 'import json, sys; print([c["id"] for c in json.load(sys.stdin) if c["export"] == "logs"][0])')
check "a connection has its export's class" says idle,4 get "connections/$id/ioprio"
ctl set exports/logs/ioprio be:1 >/dev/null
check "and follows it" says be,1 get "connections/$id/ioprio"
check "until it has one of its own" says "connections/$id/ioprio = rt,2" set "connections/$id/ioprio" rt:2
ctl set exports/logs/ioprio idle >/dev/null
check "which it keeps" says rt,2 get "connections/$id/ioprio"
kill $client
wait $client 2>/dev/null

# Statistics against fio's own counts.
fio_nbd() { # EXPORT OPTIONS...
    fio --name=ctl --ioengine=nbd --uri="$(at "$1")" --thread --output-format=json --output="$DIR/fio.json" --randseed=1 "${@:2}"
}
check "work to count" fio_nbd slow --rw=randrw --rwmixread=60 --bsrange=4k-64k --blockalign=4k --iodepth=16 --size=32M --fsync=64
check "diskstats and stats have fio's counts" "$PYTHON" -c 'import json, subprocess, sys
def ctl(what):
    return json.loads(subprocess.run([sys.argv[1], "ctl", sys.argv[2], what, "--json"], check=True, capture_output=True).stdout)
text = open(sys.argv[3]).read()
# fio may have something to say first.
job = json.loads(text[text.index("{"):])["jobs"][0]
line = next(d for d in ctl("diskstats") if d["name"] == "hw2")["fields"]
ops = ctl("stats")["exports"]["slow"]["ops"]
for side, prefix in [("read", "rd"), ("write", "wr")]:
    ios, merges = line[prefix + "_ios"], line[prefix + "_merges"]
    assert ios + merges == job[side]["total_ios"] == ops[side]["bios"], (side, line, job[side]["total_ios"])
    assert line[prefix + "_sectors"] * 512 == job[side]["io_bytes"] == ops[side]["bytes"], (side, line)
assert line["wr_ticks"] >= line["wr_ios"], "every write was delayed by a millisecond"
assert line["time_in_queue"] == sum(line[f] for f in ["rd_ticks", "wr_ticks", "dc_ticks", "fl_ticks"]), line
assert 0 < line["io_ticks"] <= line["time_in_queue"] and line["in_flight"] == 0, line
assert line["fl_ios"] == ops["flush"]["requests"] > 0, line' "$HEADWORKS" "$CONTROL" "$DIR/fio.json"
check "lines as in /proc/diskstats" bash -c '"$1" ctl "$2" diskstats | awk "NF != 20 || \$3 !~ /^hw[0-9]+\$/ { exit 1 } END { exit NR != 3 }"' - "$HEADWORKS" "$CONTROL"
check "stats for people" bash -c '"$1" ctl "$2" stats | tee /dev/stderr | grep -q "write: .* bios in .* requests"' - "$HEADWORKS" "$CONTROL"
stop_server

# Switches while requests are under way: none is lost, none is damaged. The load lasts as long as they do.
serve --control "$CONTROL" "$(spec disk)"
fio --name=switch --ioengine=nbd --uri="$URI" --thread --numjobs=2 --size=32M --offset_increment=32M --rw=randrw --bsrange=4k-256k \
    --blockalign=4k --iodepth=16 --time_based --runtime=90 --verify=crc32c --verify_fatal=1 --verify_dump=0 --verify_backlog=64 \
    --verify_state_save=0 --aux-path="$DIR" --output-format=terse >"$DIR/fio.out" 2>&1 &
load=$!
is_loaded() { [ "$(ctl diskstats | awk '{ print $8 }')" -gt 100 ]; }
wait_until 20 is_loaded
switches() {
    local round
    for round in 1 2 3; do
        ctl set hw0/queue/scheduler mq-deadline && [ "$(ctl get hw0/queue/scheduler)" = 'none [mq-deadline] bfq' ] || return 1
        ctl set hw0/queue/nr_requests 7 && ctl set hw0/queue/iosched/fifo_batch 2 || return 1
        ctl set hw0/queue/max_sectors_kb 64 && ctl set hw0/queue/nomerges 2 || return 1
        ctl set hw0/queue/scheduler none && [ "$(ctl get hw0/queue/scheduler)" = '[none] mq-deadline bfq' ] || return 1
        ctl set hw0/queue/nr_requests $((100 + round)) && [ "$(ctl get hw0/queue/nr_requests)" = $((100 + round)) ] || return 1
        ctl set hw0/queue/max_sectors_kb 1280 && ctl set hw0/queue/nomerges 0 || return 1
    done
    is_gone "$load" && { echo "the load was over before the switches"; return 1; }
    return 0
}
check "switches under load, each in force when it is answered" switches
kill -INT $load
wait $load
found=$?
# 128 alone: it was interrupted, and nothing was wrong before.
check "fio finds every byte" bash -c 'cat "$1"; [ "$2" -eq 128 ]' - "$DIR/fio.out" $found
stop_server

# A failed flush: the volume is suspect until the operator discards what may be lost.
serve --control "$CONTROL" "error:rate=100%,errno=EIO,op=flush,count=1,of=$(spec bad)"
flushes() { "$PYTHON" -c 'import nbd, sys
h = nbd.NBD()
h.connect_uri(sys.argv[1])
h.pwrite(bytes(4096), 0)
h.flush()' "$URI"; }
failing() { ! flushes; }
check "a flush fails" failing
check "and so does the next, though the device would do it" failing
check "the log says how to go on" grep -q 'discard-failed' "$LOG"
check "stats say so" bash -c '"$1" ctl "$2" stats | grep -q SUSPECT' - "$HEADWORKS" "$CONTROL"
check "an unknown export" fails 1 'default.*ENOENT' discard-failed bad --yes
check "the old name names the new one" fails 2 'discard-failed' acknowledge default
check "discard-failed without --yes says what would be lost" fails 1 'would lose 0 acknowledged bytes and some or all of the . writes.*nothing was changed.*--yes' discard-failed default
check "and as JSON, with the same exit code" bash -c '"$1" ctl "$2" --json discard-failed default | grep -q "\"discarded\": false"; [ ${PIPESTATUS[0]} -eq 1 ]' - "$HEADWORKS" "$CONTROL"
check "and changes nothing: flushes still fail" failing
check "discard-failed --yes" bash -c '"$1" ctl "$2" discard-failed default --yes | tee /dev/stderr | grep -q "discarded; lost: .* . writes"' - "$HEADWORKS" "$CONTROL"
check "flushes work again" flushes
check "a second one has nothing to discard" bash -c '"$1" ctl "$2" discard-failed default | grep -q "nothing to discard"' - "$HEADWORKS" "$CONTROL"
stop_server

# A stop while somebody waits for a switch.
serve --control "$CONTROL" "delay:write=600s,of=mem:size=16M"
"$PYTHON" -c 'import nbd, sys
h = nbd.NBD()
h.connect_uri(sys.argv[1])
h.aio_pwrite(b"x" * 4096, 0)
while h.aio_in_flight() and not h.aio_is_dead():
    h.poll(-1)' "$URI" >"$DIR/slow" 2>&1 &
slow=$!
is_writing() { [ "$(ctl diskstats | awk '{ print $12 }')" -eq 1 ]; }
check "a write in the device is seen in flight" wait_until 10 is_writing
script ctl.py stop "$CONTROL" "$SERVER"
stop_at_once
check "more signals end the server" test "$STATUS" -eq 1
no_panic
kill $slow 2>/dev/null
wait $slow 2>/dev/null || :
