#!/usr/bin/env bash
# matrix: either,backend
# What a server recorded, the lab replays to the same actions.
. "$(dirname "$0")/lib.sh"

serve --record "$DIR/record" "$(spec disk)"
check "work to record" fio --name=record --ioengine=nbd --uri="$URI" --thread --numjobs=2 --size=32M --offset_increment=32M --rw=randrw \
    --bsrange=4k-128k --blockalign=4k --iodepth=16 --io_size=8M --fsync=64 --verify=crc32c --verify_state_save=0 --aux-path="$DIR" --output-format=terse
stop_server
check "the record is there" test -s "$DIR/record"
check "headworks lab replay" "$HEADWORKS" lab replay "$DIR/record"
first=$("$HEADWORKS" lab replay "$DIR/record" 2>&1)
check "twice the same" test "$first" = "$("$HEADWORKS" lab replay "$DIR/record" 2>&1)"
cp "$DIR/record" "$DIR/cut"
truncate -s $(($(stat -c %s "$DIR/record") / 2)) "$DIR/cut"
ends_clearly() { # a record cut short, as a kill -9 leaves it: replayed as far as it goes, or refused; never a panic
    timeout 60 "$HEADWORKS" lab replay "$DIR/cut" >"$DIR/cut.out" 2>&1
    local status=$?
    cat "$DIR/cut.out"
    [ $status -le 2 ] && ! grep -q panicked "$DIR/cut.out"
}
check "a record cut short ends clearly" ends_clearly
