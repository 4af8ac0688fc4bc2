#!/usr/bin/env bash
# matrix: once
# `headworks info` beside nbdinfo, field by field, on our server and on others.
. "$(dirname "$0")/lib.sh"


# Everything that nbdinfo tells, but for what it reads out of the disk (content).
same() { # URI [--list]
    "$PYTHON" -c 'import json, subprocess, sys
ours, theirs = (json.loads(subprocess.check_output(c + ["--json"] + sys.argv[2:])) for c in ([sys.argv[1], "info"], ["nbdinfo"]))
for export in theirs["exports"]:
    export.pop("content", None)
    export["contexts"] = sorted(export["contexts"])
for export in ours["exports"]:
    export["contexts"] = sorted(export["contexts"])
assert ours == theirs, "\n".join(map(str, (ours, theirs)))' "$HEADWORKS" "$@"
}
same_lines() { # URI [--list]|[--map [--totals]]
    "$HEADWORKS" info "$@" >"$DIR/ours" && nbdinfo "$@" >"$DIR/theirs" || return 1
    diff "$DIR/ours" <(sed '/^\tcontent: /d' "$DIR/theirs")
}
refused() { # SENTENCE COMMAND...
    local said
    said=$("${@:2}" 2>&1) && return 1
    echo "$said"
    grep -q "$1" <<<"$said"
}

serve "one=mem:size=16M" "two=mem:size=10000384" "three=null:size=1T"
check "one export as nbdinfo tells it" same "$(at one)"
check "the same lines" same_lines "$(at one)"
check "a size that is no whole unit" same_lines "$(at two)"
check "the default export" same "$(at '')"
check "all exports" same --list "$(at '')"
check "and their lines" same_lines --list "$(at '')"
check "the size alone" test "$("$HEADWORKS" info --size "$(at three)")" = "$(nbdinfo --size "$(at three)")"
check "nothing reads: no error" without_reader "$HEADWORKS" info "$(at one)"
check "nor of a map" without_reader "$HEADWORKS" info --map "$(at three)"
check "nor of a size" without_reader "$HEADWORKS" info --size "$(at one)"
cut_off() { # ARGUMENTS...
    ! "$HEADWORKS" info "$@" >/dev/full
}
check "a map on a full disk fails" cut_off --map "$(at three)"
check "an export that is not there" refused "no such export" "$HEADWORKS" info "$(at four)"
check "--totals without --map" refused "^ *--map" "$HEADWORKS" info --totals "$(at one)"
check "--list with --size" refused "^headworks: error: .*cannot be used with" "$HEADWORKS" info --list --size "$(at one)"
stop_server
serve -r "$(spec readonly)"
check "a read-only export" same "$URI"
stop_server

# Who lists asks several things of each, on one connection.
truncate -s 1M "$DIR/many.img"
for n in {1..600}; do printf '[[export]]\nname = "e%d"\nfile.path = "%s/many.img"\n' "$n" "$DIR"; done >"$DIR/many.toml"
serve --config "$DIR/many.toml"
listed() { [ "$("$@" | grep -c '^export=\|^ *export:')" -eq 600 ]; }
check "nbdinfo lists 600 exports" listed nbdinfo --list "$(at '')"
check "qemu-nbd, too" listed qemu-nbd --list -k "$SOCKET"
check "and info" listed "$HEADWORKS" info --list "$(at '')"
stop_server

truncate -s 64M "$DIR/plain.img"
qemu-io -f raw -c 'write -P 7 1M 1M' "$DIR/plain.img" >/dev/null
qemu-nbd -f raw -t -e 4 -k "$SOCKET" -x disk -D "a disk" "$DIR/plain.img" &
QEMU=$!
check "qemu-nbd is up" wait_until 10 nbdinfo --size "$(at disk)"
check "qemu-nbd as nbdinfo tells it" same "$(at disk)"
check "the same lines" same_lines "$(at disk)"
check "its list" same --list "$(at '')"
check "its map" same_lines --map "$(at disk)"
kill $QEMU
wait $QEMU 2>/dev/null
rm -f "$SOCKET"

if command -v nbdkit >/dev/null; then
    # One that offers little, and one that tells its blocks and their holes.
    nbdkit -f -U "$SOCKET" --mask-handshake=0 memory 5M &
    NBDKIT=$!
    check "nbdkit is up" wait_until 10 nbdinfo --size "$(at '')"
    check "a server of the oldest kind is not believed" refused "oldstyle handshake" "$HEADWORKS" info "$(at '')"
    kill $NBDKIT
    wait $NBDKIT 2>/dev/null
    rm -f "$SOCKET"
    nbdkit -f -U "$SOCKET" --no-sr memory 5M &
    NBDKIT=$!
    check "nbdkit without structured replies is up" wait_until 10 nbdinfo --size "$(at '')"
    check "it is told as nbdinfo tells it" same_lines "$(at '')"
    check "it has no map" refused "does not support base:allocation" "$HEADWORKS" info --map "$(at '')"
    kill $NBDKIT
    wait $NBDKIT 2>/dev/null
    rm -f "$SOCKET"
    nbdkit -f -U "$SOCKET" data '@0x100000 1*4096 @0x40000000 0' size=2T &
    NBDKIT=$!
    check "nbdkit with two terabytes is up" wait_until 10 nbdinfo --size "$(at '')"
    check "it is told as nbdinfo tells it" same "$(at '')"
    check "its map" same_lines --map "$(at '')"
    check "its totals" same_lines --map --totals "$(at '')"
    kill $NBDKIT
    wait $NBDKIT 2>/dev/null
    rm -f "$SOCKET"
else
    skip "nbdkit as nbdinfo tells it" "there is no nbdkit"
fi
