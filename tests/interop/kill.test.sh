#!/usr/bin/env bash
# matrix: engine,backend,cache
# kill -9 of clients with requests in flight, and of the server after a flush.
. "$(dirname "$0")/lib.sh"

serve "$(spec disk)"
"$PYTHON" "$HERE/kill.py" verify "$URI" "$DIR/stop" >"$DIR/verified" 2>&1 &
honest=$!
floods=0
for i in 1 2 3 4 5 6; do
    SEED=$i "$PYTHON" "$HERE/kill.py" flood "$URI" >"$DIR/flood" 2>&1 &
    flood=$!
    if wait_until 30 grep -q flooding "$DIR/flood"; then
        floods=$((floods + 1))
    fi
    kill -9 $flood
    wait $flood 2>/dev/null
done
check "6 clients killed with 64 requests in flight" test $floods -eq 6
touch "$DIR/stop"
wait $honest
check "another client read back what it wrote all the while: $(tail -n 1 "$DIR/verified") times" test $? -eq 0
check "the disk is served on" nbdinfo --size "$URI"

if [ "$BACKEND" = mem ]; then
    stop_server
    exit
fi
"$PYTHON" "$HERE/kill.py" flushed "$URI" "$DIR/state" >"$DIR/writer" 2>&1 &
writer=$!
check "versions are written and flushed" wait_until 30 test -e "$DIR/state"
kill -9 "$SERVER"
wait "$SERVER" 2>/dev/null
SERVER=0
wait $writer
check "the server left its socket behind" test -S "$SOCKET"
# Its memory is lost with it, and nobody is to be told.
serve "$(spec disk),on-unclean=serve"
check "after kill -9 every flushed block has its version or a newer one" "$PYTHON" "$HERE/kill.py" check "$URI" "$DIR/state"
stop_server
