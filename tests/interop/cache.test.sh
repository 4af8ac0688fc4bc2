#!/usr/bin/env bash
# matrix: either
# seconds: 7
# The page cache: what is said of it, who sees what, what a crash leaves, how a stop writes out, its tunables and errors.
. "$(dirname "$0")/lib.sh"

IMAGE=$IMAGES/disk.img
refused() { # STATUS PATTERN ARGUMENTS...: a server that does not start
    launch -U "$SOCKET" "${@:3}" && { stop_with KILL; return 1; }
    cat "$LOG"
    [ $STATUS -eq "$1" ] && [ "$(wc -l <"$LOG")" -eq 1 ] && grep -Eq -- "$2" "$LOG"
}
counter() { # PATH OF NAMES: a number of `ctl stats`
    ctl stats --json | "$PYTHON" -c 'import functools, json, sys
print(functools.reduce(lambda table, name: table[name], sys.argv[1].split("."), json.load(sys.stdin)))' "$1"
}
client() { "$PYTHON" "$HERE/cache.py" "$@"; }
file() { echo "file:path=$IMAGE,size=$SIZE${1:+,$1}"; } # KEYS
SERVED=on-unclean=serve # After a kill that lost memory: nobody is to be told.
drop_server() { # kill -9
    kill -9 "$SERVER"
    wait "$SERVER" 2>/dev/null
    SERVER=0
}

# What is said.
serve --cache 8M --control "$CONTROL" "a=$(file)" b=mem:size=64M,cache=none c=mem:size=64M,cache=unsafe
check "the start says how large the cache is and what of" grep -Eq '^cache: 8 MiB, (transparent|reserved|ordinary)' "$OUT"
check "and when writes are acknowledged" grep -q '^write mode: writeback (a): .*; none (b): .*; unsafe (c): .*GUARANTEE NOTHING' "$OUT"
check "and what a crash loses" grep -q '^kill -9 loses: of a acknowledged unflushed writes, at most 1.5 MiB; a power cut, too; of b, c everything' "$OUT"
check "unsafe is said loudly" grep -q '^WARNING: export c is cache=unsafe' "$OUT"
check "info shows it" bash -c '"$1" info "$2" | tee /dev/stderr | grep -q "UNSAFE"' - "$HEADWORKS" "$(at c)"
check "unsafe has no multi-conn" bash -c '! nbdinfo --can multi-conn "$1"' - "$(at c)"
check "the others have" nbdinfo --can multi-conn "$(at a)"
script cache.py offers "$(at a)"
script cache.py offers "$(at c)"
check "stats say it" bash -c '"$1" ctl "$2" stats | tee /dev/stderr | grep -q "^c: .*UNSAFE"' - "$HEADWORKS" "$CONTROL"
check "an export's mode is a fact" fails 1 'EACCES' set exports/a/cache none
check "and can be read" says none get exports/b/cache

# Tunables, as in /proc/sys/vm.
check "a ratio counts" says 20 get vm/dirty_ratio
check "until bytes do" says "vm/dirty_bytes = 2097152" set vm/dirty_bytes 2M
check "then it is 0" says 0 get vm/dirty_ratio
check "the limit follows" test "$(counter dirty.nr_dirty_threshold)" -le 512
check "out of range" fails 1 '1\.\.=90.*EINVAL' set vm/dirty_ratio 95
check "no such word" fails 1 'ioless, none.*EINVAL' set vm/hw_throttle fast
check "read-ahead changes at once" says "hw0/queue/read_ahead_kb = 512" set hw0/queue/read_ahead_kb 512

# Who sees what.
script cache.py bytes "$(at a)"
script cache.py seen "$(at a)"
check "blocks that were asked for twice are hits" test "$(counter cache.hits)" -gt 500
check "stats for people" bash -c '"$1" ctl "$2" stats | tee /dev/stderr | grep -Eq "^cache: .* of 8.0 MiB in use"' - "$HEADWORKS" "$CONTROL"
check "nothing failed" says "a: no write-out has failed" failed a
check "qemu-io writes parts of blocks" qemu-io -f raw -c 'write -P 0x5a 1000 3333' -c 'read -P 0x5a 1000 3333' -c flush "$(at a)"
stop_server

# Without one.
serve --cache 0 --control "$CONTROL" "$(file direct=on)"
check "no cache is said" grep -q '^cache: none$' "$OUT"
check "and has no tunables" fails 1 'ENOENT' get vm/dirty_ratio
check "nor counters" test "$(counter cache)" = None
stop_server
serve --cache 0 "$(file direct=on)"
script cache.py offers "$URI"
stop_server

# What cannot be.
check "a mode without a cache: exit 2" refused 2 'cache: export .* needs a cache, but --cache is 0' --cache 0 mem:size=1M,cache=writeback
check "too small" refused 1 '1 MiB for each' --cache 100K mem:size=1M,cache=writeback
check "no such mode: exit 2" refused 2 'writeback, writethrough, none, unsafe, stream' mem:size=1M,cache=fast
check "exports of one image that differ" refused 1 'cache: export `b` differs' --cache 8M "a=$(file cache=none)" "b=$(file cache=writeback)"
check "no such option: exit 2" refused 2 'vm/dirty_bytes' --set vm/dirty=1 mem:size=1M

# A server that nobody uses.
resident() { awk '/^VmRSS/ { print $2 }' "/proc/$SERVER/status"; }
serve --cache 256M mem:size=64M,cache=writeback
# Beyond the cache, whose tables are at most 2 % of it.
check "idle, with the default cache, it has less than 20 MB: $(resident) kB" test "$(resident)" -lt $((20000 + 262144 / 50))
stop_server
serve --cache 4G mem:size=64M,cache=writeback
check "tables are at most 2 % of a cache: $(resident) kB with 4 GiB" test "$(resident)" -lt $((20000 + 4 * 1048576 / 50))
stop_server

# What a crash leaves.
pseudo_random 8 cache >"$DIR/source"
serve --cache 64M "$(file)"
check "8 MiB are written and flushed" nbdcopy --flush "$DIR/source" "$URI"
drop_server
check "after kill -9 the image holds what was flushed" cmp -n $((8 << 20)) "$IMAGE" "$DIR/source"
pseudo_random 8 through >"$DIR/source"
serve --cache 64M "$(file cache=writethrough)"
check "8 MiB are written, not flushed" nbdcopy "$DIR/source" "$URI"
drop_server
check "written through, the image holds them" cmp -n $((8 << 20)) "$IMAGE" "$DIR/source"

# Streams: written soon, and gone from the cache; the same data for clients, and as durable as with writeback.
pseudo_random 48 stream >"$DIR/source"
serve --cache 64M --control "$CONTROL" "$(file cache=stream,$SERVED)" other=mem:size=64M,cache=writeback
check "the mode is said" grep -q '^write mode: stream (.*): .*; writeback (other)' "$OUT"
check "48 MiB are written and flushed" nbdcopy --flush "$DIR/source" "$URI"
check "what is clean has left the cache" test "$(counter cache.resident)" -eq 0
check "and is counted" test "$(counter cache.dropped_behind)" -ge $((48 * 256))
check "a stream of reads gets the same bytes" \
    cmp -n $((48 << 20)) "$DIR/source" <(nbdcopy --connections=1 --requests=2 "$URI" - 2>/dev/null)
check "and leaves little: $(counter cache.resident) blocks" test "$(counter cache.resident)" -le $((8 * 256))
check "ctl shows the mode" grep -q ' stream ' <(ctl exports)
drop_server
check "after kill -9 the image holds what was flushed" cmp -n $((48 << 20)) "$IMAGE" "$DIR/source"

# A stop writes out, says how far it is, and has an end.
pseudo_random 16 stop >"$DIR/source"
slow="delay:write=100ms,$SERVED,of=$(file)"
few=(--cache 64M --queue-depth 1 --max-sectors-kb 512 --set vm/dirty_bytes=48M --set vm/dirty_background_bytes=40M)
serve "${few[@]}" "$slow"
check "16 MiB for a slow disk" nbdcopy "$DIR/source" "$URI"
stop_with TERM 30
check "SIGTERM ends the server with 0" test "$STATUS" -eq 0
check "it said how far it was" grep -Eq 'stopping: .* left to write, .*/s, about [0-9]+ s' "$LOG"
check "everything is in the image" cmp -n $((16 << 20)) "$IMAGE" "$DIR/source"
no_panic
serve "${few[@]}" --stop-timeout 1s "$slow"
check "16 MiB for a slow disk, again" nbdcopy "$DIR/source" "$URI"
stop_with TERM 10
check "a stop that takes too long ends with 1" test "$STATUS" -eq 1
check "and says what is left of which export" grep -Eq 'error: export default: [0-9]+ bytes .* were not written within the 1 s' "$LOG"
rm -f "$SOCKET"

# Errors of write-out: held, listed, discarded. (Where more than 1 % of the cache is held writes are refused, too.)
bad="error:rate=100%,errno=EIO,op=write,range=1M-1280K,of=mem:size=16M"
serve --cache 256M --control "$CONTROL" "bad=$bad"
check "writes are acknowledged" client fill "$(at bad)" 4 1 later
failing() { ! client flushes "$(at bad)"; }
check "a flush fails" failing
check "and fails again" failing
# What was written out together is held together.
held=$(ctl failed bad --json | "$PYTHON" -c 'import json, sys
ranges = [(r["offset"], r["offset"] + r["bytes"]) for r in json.load(sys.stdin)["ranges"]]
bad = range(1 << 20, 1280 << 10, 4096)
assert all(any(a <= at and at + 4096 <= b for a, b in ranges) for at in bad), ranges
print(sum(b - a for a, b in ranges))')
check "failed lists the bad range, in all $held bytes" test "${held:-0}" -ge 262144
check "and no more than was written with it" test "${held:-0}" -le 4194304
check "discard-failed without --yes tells how many" bash -c '"$1" ctl "$2" discard-failed bad 2>&1 | tee /dev/stderr | grep -q "would lose $3 acknowledged bytes"' - "$HEADWORKS" "$CONTROL" "$held"
check "and flushes still fail" failing
check "with --yes they are discarded" bash -c '"$1" ctl "$2" discard-failed bad --yes | tee /dev/stderr | grep -q "lost: $3 acknowledged bytes"' - "$HEADWORKS" "$CONTROL" "$held"
check "flushes work again" client flushes "$(at bad)"
check "and nothing is listed" says "bad: no write-out has failed" failed bad
stop_server

# Unsafe promises nothing to crashes; a stop is none.
pseudo_random 8 unsafe >"$DIR/source"
serve --cache 64M "$(file cache=unsafe,$SERVED)"
check "8 MiB are written to an unsafe export" nbdcopy --flush "$DIR/source" "$URI"
stop_server
check "a stop writes them out" cmp -n $((8 << 20)) "$IMAGE" "$DIR/source"

# And so its flushes never fail.
serve --cache 8M "error:rate=100%,op=flush,cache=unsafe,of=mem:size=16M"
check "a flush of an unsafe export does not reach the device" client flushes "$URI"
stop_with TERM
no_panic
