#!/usr/bin/env bash
# matrix: either
# seconds: 10
# A cache of automatic size: it uses free memory, and gives it back to others, with all data as they were written.
. "$(dirname "$0")/lib.sh"

IMAGE=$IMAGES/disk.img
resident() { awk '/^VmRSS/ { print int($2 / 1024) }' "/proc/$SERVER/status"; } # MiB
counter() { # NAME: bytes of the cache, in MiB
    ctl stats --json | "$PYTHON" -c 'import json, sys
print(json.load(sys.stdin)["cache"][sys.argv[1]] >> 8)' "$1"
}
half() { awk '/^MemTotal/ { print int($2 / 2048) }' /proc/meminfo; } # MiB

# The default.
CACHE=auto
serve --control "$CONTROL" "file:path=$IMAGE,size=$SIZE"
check "the start says what it may become" grep -Eq '^cache: up to [0-9.]+ [MG]iB of free memory, ' "$OUT"
check "and that a part of it may be dirty" grep -Eq '^kill -9 loses: acknowledged unflushed writes, at most [0-9.]+ MiB' "$OUT"
check "its tables take memory as it is used: $(resident) MiB" test "$(resident)" -lt 30
check "it may have half of the memory: $(counter room) MiB" test "$(counter room)" -le $(($(half) + 4))
pseudo_random $SIZE_MIB auto >"$DIR/source"
check "a client writes all of the image" nbdcopy --flush "$DIR/source" "$URI"
check "and reads it" bash -c 'nbdcopy "$1" "$2" && cmp "$2" "$3"' - "$URI" "$DIR/copy" "$DIR/source"
check "all of it is cached: $(counter resident) MiB" test "$(counter resident)" -ge $SIZE_MIB
stop_server
# As much may be dirty as the disk writes in 2 s, in memory that outlives the server. This one takes 1 ms for a command of up to 1 MiB, and many at once.
if [ "$(half)" -ge 4096 ]; then
    KEPT=$(mktemp -d /dev/shm/hw-interop-XXXXXX)
    least=$((256 << 8)) # blocks
    threshold() { ctl stats --json | "$PYTHON" -c 'import json, sys; print(json.load(sys.stdin)["dirty"]["nr_dirty_threshold"])'; }
    follows() { # writes until the limit is above the least one
        local limit=$((SECONDS + 30))
        until [ "$(threshold)" -gt $least ]; do
            [ $SECONDS -lt $limit ] || return 1
            "$HEADWORKS" bench --uri "$URI" --rw write --bs 1m --iodepth 8 --runtime 1s --overwrite >/dev/null || return 1
        done
    }
    serve --control "$CONTROL" --cache-file "$KEPT/cache" "delay:write=1ms,of=file:path=$KEPT/fast.img,size=1G"
    check "the start says how much may be dirty" grep -q 'at most 256 MiB, or what the disks write in 2 s (up to ' "$OUT"
    check "256 MiB before the disk's rate is known" test "$(threshold)" -le $least
    check "then what it writes in 2 s" follows
    stop_server
    rm -rf "$KEPT"
else
    skip "dirty data by the disk's rate" "less than 8 GiB of memory"
fi
refused() { # PATTERN ARGUMENTS...: a server that does not start
    launch -U "$SOCKET" "${@:2}" && { stop_with KILL; return 1; }
    cat "$LOG"
    grep -Eq -- "$1" "$LOG"
}
check "another word is refused" refused 'cache.*or auto' --cache half mem:size=1M

# A control group of 200 MiB, of version 2 or 1.
GROUP=''
for parent in /sys/fs/cgroup /sys/fs/cgroup/memory; do
    limit=memory.max
    [ "$parent" = /sys/fs/cgroup ] || limit=memory.limit_in_bytes
    mkdir "$parent/headworks-$$" 2>/dev/null || continue
    GROUP=$parent/headworks-$$
    # Elsewhere it is an ordinary folder.
    [ -e "$GROUP/$limit" ] && echo $((200 << 20)) 2>/dev/null >"$GROUP/$limit" && break
    rmdir "$GROUP"
    GROUP=''
done
if [ -z "$GROUP" ]; then
    skip "a control group of 200 MiB" "no control group with a limit of memory can be made here"
    exit $BAD
fi
join() { echo "$1" >"$2/cgroup.procs"; } # PROCESS GROUP
in_group() { # COMMAND...: becomes a process of the group; to be run in the background
    join "$BASHPID" "$GROUP" && exec "$@"
}
kills() { # processes that were killed for memory in the group
    cat "$GROUP/memory.events" "$GROUP/memory.oom_control" 2>/dev/null | awk '/^oom_kill / { print $2 }'
}
# The server finds the limit at its start, so the shell that starts it is in the group.
home=$(awk -F: -v one="${GROUP%/*}" '(one ~ /memory$/) ? $2 == "memory" : $1 == 0 { print $3 }' /proc/self/cgroup)
join $$ "$GROUP"
serve --control "$CONTROL" "file:path=$IMAGES/large.img,size=1G"
join $$ "${GROUP%/*}$home"
check "the cache may have half of the group's limit" grep -q '^cache: up to 100 MiB of free memory' "$OUT"
for part in 1 2 3 4; do pseudo_random 128 $part; done >"$DIR/source"
check "a client writes 512 MiB" nbdcopy --flush "$DIR/source" "$URI"
check "and reads them as they were written" bash -c 'nbdcopy "$1" - | cmp -n $((512 << 20)) - "$2"' - "$URI" "$DIR/source"
warm=$(resident)
check "the server keeps within the group: $warm MiB" test "$warm" -lt 200
check "its cache is in use: $(counter resident) MiB" test "$(counter resident)" -ge 50
# Another process takes memory, as fast as it may: 1 MiB in 10 ms.
in_group "$PYTHON" -c 'import signal, time
taken = []
for _ in range(110):
    taken.append(bytearray(b"x" * (1 << 20)))
    time.sleep(0.01)
print("taken", flush=True)
signal.pause()' >"$DIR/hog" &
hog=$!
gives_back() { [ "$(resident)" -le $((warm - 30)) ]; }
check "it gives back what another process takes" wait_until 30 gives_back
check "which gets it" wait_until 30 grep -q taken "$DIR/hog"
check "its limit is lower: $(counter units) of $(counter room) MiB" test "$(counter units)" -lt "$(counter room)"
check "what was written is there" bash -c 'nbdcopy "$1" - | cmp -n $((512 << 20)) - "$2"' - "$URI" "$DIR/source"
check "a client writes meanwhile" nbdcopy --flush "$DIR/copy" "$URI"
check "nothing was killed" test "$(kills)" -eq 0
{ kill $hog; wait $hog; } 2>/dev/null
grows() { [ "$(counter units)" -eq "$(counter room)" ]; }
check "it may use the memory again afterwards" wait_until 30 grows
check "with the data of the last writer" bash -c 'nbdcopy "$1" - | cmp -n $((SIZE)) - "$2"' - "$URI" "$DIR/copy"
stop_server
rmdir "$GROUP" 2>/dev/null
exit $BAD
