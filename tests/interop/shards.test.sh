#!/usr/bin/env bash
# matrix: engine
# seconds: 7
# Several threads, and volumes spread over them: bios, answers and tag leases cross between shards, and every shard's record
# replays by itself.
. "$(dirname "$0")/lib.sh"

verify() { # EXPORT: random writes and reads, each byte checked against what was acknowledged
    "$HEADWORKS" bench --uri "nbd+unix:///$1?socket=$SOCKET" --overwrite --rw randrw --bs 4k --iodepth 16 --threads 2 \
        --runtime 1s --verify --from-zeros
}

for setting in "2 0" "4 0" "2 16M" "4 16M"; do
    read -r shards CACHE <<<"$setting"
    label="$shards shards, cache $CACHE"
    BACKEND=file
    # Few tags, so that leases are wanted, granted and taken back; two volumes on one device, which is one queue.
    serve --shards "$shards" --spread --nr-requests 8 --record "$DIR/record" \
        a=mem:size=16M b=mem:size=16M "c=$(spec c 16M)" "d=$(spec d 16M)" "e=error:rate=1%,errno=EAGAIN,of=mem:size=16M"
    pids=()
    for name in a b c d e; do
        verify $name >"$DIR/verify.$name" 2>&1 &
        pids+=($!)
    done
    for name in a b c d e; do
        wait "${pids[0]}"
        status=$?
        pids=("${pids[@]:1}")
        check "$label: export $name verifies" sh -c 'cat "$2"; exit "$1"' - $status "$DIR/verify.$name"
    done
    stop_server
    check "$label: the first record replays" "$HEADWORKS" lab replay "$DIR/record"
    for ((shard = 1; shard < shards; shard++)); do
        check "$label: the record of shard $shard replays" "$HEADWORKS" lab replay "$DIR/record.$shard"
    done
    rm -f "$IMAGES"/*.img "$DIR"/record*
done
