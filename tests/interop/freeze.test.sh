#!/usr/bin/env bash
# matrix: engine
# seconds: 8
# `ctl freeze` and `ctl thaw`: copies of one point in time under a client that writes, with several shards; what ends a freeze.
. "$(dirname "$0")/lib.sh"

BACKEND=file
A=$IMAGES/a.img B=$IMAGES/b.img SLOW=$IMAGES/slow.img
for setting in "2 0" "1 16M"; do
    read -r shards CACHE <<<"$setting"
    rm -f "$A" "$B" "$SLOW"
    serve --control "$CONTROL" --shards "$shards" --spread "a=file:path=$A,size=1M" "b=file:path=$B,size=1M" \
        "slow=delay:write=200ms,of=file:path=$SLOW,size=1M"
    script freeze.py "$CONTROL" "$(at a)" "$(at b)" "$A" "$B" "$SLOW" "$LOG"
    [ "$CACHE" = 16M ] || stop_server
done

check "freeze tells what it did" says_like '^a, b: frozen, [0-9.]+ [A-Za-z]+ written out in [0-9.]+ s; thaw within 60 s$' freeze a b
check "its state is shown" says_like '^a .* frozen$' exports
check "thaw tells how long it was" says_like '^a, b: thawed after [0-9.]+ s$' thaw '?'
check "a second thaw fails" fails 1 'not frozen: a \(EINVAL\)' thaw a

# A read waits for no freeze: what it waited for is the limit alone.
limited() {
    ctl add "c=file:path=$IMAGES/c.img,size=1M,bps-read=256K" && ctl freeze c --run true &&
        qemu-io -r -f raw -c 'read 0 512k' -c 'read 0 512k' "$(at c)" >/dev/null && says_like 'in limit \(export c: bps-read' why c
}
check "why names the limit that reads waited for after a freeze" limited
check "its export is removed" ctl remove c

# --run: the copy, the exit code of the command, and a freeze that ended before.
qemu-io -f raw -c 'write -P 7 512k 4k' "$(at a)" >/dev/null
check "a command runs under a freeze" ctl freeze a --run "cp '$A' '$DIR/copy.img'"
check "the copy has what was written to the cache" qemu-io -r -f raw -c 'read -P 7 512k 4k' "$DIR/copy.img"
check "and the export is thawed" fails 1 'not frozen' thaw a
exits_with() { # STATUS ARGUMENTS...
    local output
    output=$(ctl "${@:2}" 2>&1)
    local status=$?
    echo "exit $status: $output"
    [ $status -eq "$1" ]
}
check "the exit code is the command's" exits_with 7 freeze a --run 'exit 7'
check "it is 1 if the freeze had ended before" fails 1 'had ended by itself: a after 0.5 s' freeze a --timeout 500ms --run "until grep -q 'ended by itself after 0.500 s' '$LOG'; do sleep 0.01; done"
check "a time that is none" exits_with 2 freeze a --timeout soon

# A stop while frozen: what waits is dropped, the image stays as it was frozen.
check "frozen until the end" ctl freeze a
cp "$A" "$DIR/frozen.img"
qemu-io -f raw -c 'write -P 9 0 4k' "$(at a)" >/dev/null 2>&1 &
CLIENT=$!
connected() { [ "$(ctl connections | wc -l)" -ge 1 ]; }
check "a client comes" wait_until 20 connected
stop_server
wait $CLIENT
check "the image is as it was frozen" cmp "$A" "$DIR/frozen.img"
