#!/usr/bin/env bash
# matrix: once
# seconds: 10
# A directory on a slow disk: `headworks dir` under cp, git, fio and SQLite, with its limits, its end, and what it refuses, as root and without
# rights.
. "$(dirname "$0")/lib.sh"

cd "$DIR" || exit 1
on() { # DISK ARGUMENTS... -- PROGRAM...: with the summary in summary.json
    "$HEADWORKS" dir slow --disk "$1" --json=summary.json "${@:2}" 2>err
}
summary() { jq -e "$1" summary.json || { cat summary.json; return 1; }; }
refused() { # STATUS PATTERN ARGUMENTS...
    "$HEADWORKS" dir "${@:3}" >/dev/null 2>err
    [ $? -eq "$1" ] && [ "$(wc -l <err)" -eq 1 ] && grep -E "$2" err || { cat err; return 1; }
}

if ! on sata -- true && grep -q 'no directory can be mounted' err; then
    skip "a directory on a slow disk" "$(cat err)"
    exit 0
fi

# Real programs.
copied() {
    on sata -- sh -c 'cp -r "$0" slow/copy && sync slow/copy/* slow/copy && diff -r "$0" slow/copy && mv slow/copy slow/moved && rm -r slow/moved' "$HERE/tutorial" &&
        summary '.status == 0 and .commits > 0 and .flushes >= 2 * .commits and .written_bytes > 0 and .waits.sync.count > 0'
}
check "cp, diff, mv, rm" copied
check "and the directory is gone" test ! -e slow
other=$(mktemp -d /dev/shm/headworks-same.XXXXXX)
check "random operations are those of tmpfs" on sata -- "$PYTHON" "$HERE/crashtest/same.py" slow "$other" 7
rm -rf "$other"
committed() {
    on sata -- sh -ec 'cd slow && git init -q . && echo a >a && git add a && git -c user.name=a -c user.email=a@a -c core.fsync=all commit -q -m a && git fsck --strict && git log --oneline | grep a' &&
        summary '.waits.sync.count >= 3'
}
if command -v git >/dev/null; then check "git" committed; else skip "git" "it is not installed"; fi
verified() {
    on nvme -- fio --name=a --directory=slow --rw=randwrite --bs=4k --size=4M --fsync=64 --verify=crc32c --ioengine=psync --output=fio.out &&
        summary '.written_bytes >= 3932160 and .waits.sync.count >= 15'
}
direct() {
    on nvme -- fio --name=a --directory=slow --rw=randrw --direct=1 --bs=4k --size=4M --iodepth=16 --ioengine=libaio --output=fio.out &&
        summary '.reads > 100 and .writes > 100 and .waits.write.count > 100 and .waits.read.count > 100'
}
if command -v fio >/dev/null; then
    check "fio verifies" verified
    check "fio past the page cache" direct
else
    skip "fio" "it is not installed"
fi

# The time of the disk: never less.
transactions() { # a rotation takes 8.3 ms, and each transaction has several flushes
    on hdd-7200 -- "$PYTHON" "$HERE/dir.py" sqlite slow >took &&
        jq -ne --slurpfile took took --slurpfile of summary.json '$took[0] > 8 * 0.0083 and $of[0].flushes >= 16 and $of[0].waits.sync.count >= 16' ||
        { cat took summary.json; return 1; }
}
check "SQLite takes the time of a drive" transactions
waited() { # PROGRAM...: it takes at least as long as it waits, having one thread
    local begun=$EPOCHREALTIME
    on hdd-7200 -- "$@" || return 1
    awk -v took="$(awk -v a="$begun" -v b="$EPOCHREALTIME" 'BEGIN { print b - a }')" -v ns="$(jq '[.waits[].ns] | add' summary.json)" \
        'BEGIN { exit !(ns > 1e7 && took >= ns / 1e9) }'
}
check "writes with O_DSYNC are not early" waited dd if=/dev/zero of=slow/a bs=4k count=8 oflag=dsync status=none
beside() {
    on sata -- "$PYTHON" "$HERE/dir.py" beside slow >count && [ "$(cat count)" -ge 5 ] || { cat count summary.json; return 1; }
}
check "reads go on beside a sync" beside

# Memory: dirty data have a limit, and reads that find nothing in the page cache go to the disk.
limited() {
    on cloud-gp3 --dirty 4M -- dd if=/dev/zero of=slow/a bs=1M count=32 status=none &&
        summary '.waits.write.count > 0 and .written_bytes >= 25165824 and .dirty_bytes <= 6291456'
}
check "writers wait beyond the dirty limit" limited
unlimited() { on sata --dirty 64M -- dd if=/dev/zero of=slow/a bs=1M count=8 status=none && summary '.waits.write.count == 0 and .dirty_bytes == 8388608'; }
check "and not below it" unlimited
mkdir data && head -c 3M /dev/urandom >data/a
twice='cmp data/a slow/a && cmp data/a slow/a'
cached() { on sata --from data -- sh -c "$twice" && summary '.read_bytes == 3145728'; }
check "what a directory begins with is read from the disk once" cached
cold() { on sata --from data --cold -- sh -c "$twice" && summary '.read_bytes == 2 * 3145728'; }
check "and again with --cold" cold
full() {
    on sata --size 4M -- head -c 8M /dev/zero >slow.out
    on sata --size 4M -- sh -c 'head -c 8M /dev/zero >slow/a' && return 1
    grep -q 'No space left on device' err
}
check "a full directory says so" full

# The end: the status is passed on, signals are, and nothing stays.
status() { on sata -- sh -c 'exit 7'; [ $? -eq 7 ] && summary '.status == 7'; }
check "the status is passed on" status
mkdir slow
check "a directory that was there stays" on sata -- touch slow/a
check "and is empty" rmdir slow
line() { "$HEADWORKS" dir slow --disk hdd-7200 -- true 2>&1 | grep -E '^headworks dir: hdd-7200: 0 commands: .* the program waited 0.0 us'; }
check "the summary is a line" line
begun() { pgrep -x -P "$1" sleep; }
signalled() { # SIGNAL STATUS
    "$HEADWORKS" dir slow --disk sata -- sleep 99 2>err &
    local process=$!
    wait_until 10 begun $process || return 1
    kill "-$1" $process
    wait $process
    [ $? -eq "$2" ] && [ ! -e slow ]
}
check "SIGTERM reaches the program" signalled TERM 143
interrupted() { # as a terminal does: to both, and the program is told once
    set -m
    "$HEADWORKS" dir slow --disk sata -- sh -c 'trap "echo told; exit 5" INT; touch begun; while :; do sleep 0.02; done' >told 2>err &
    set +m
    local process=$!
    wait_until 10 test -e begun || return 1
    kill -INT -- -$process
    wait $process
    [ $? -eq 5 ] && [ "$(cat told)" = told ]
}
check "Ctrl-C ends both" interrupted
killed() {
    "$HEADWORKS" dir slow --disk sata -- sleep 99 2>err &
    local process=$! child
    wait_until 10 begun $process || return 1
    child=$(begun $process)
    kill -9 $process
    wait $process 2>/dev/null
    wait_until 10 is_gone "$child" && ! grep headworks-dir /proc/self/mountinfo && rmdir slow
}
check "a kill -9 leaves no program and no mount" killed

# What is refused, each in a sentence.
check "a disk that is none" refused 125 'nearest is `hdd-7200`' slow --disk hdd-720 -- true
check "a key that is none" refused 125 'nearest is `turn`' slow --disk model:profile=hdd-7200,trun=1ms -- true
check "a device inside" refused 125 'leave it out' slow --disk model:profile=sata,of=mem:size=1G -- true
check "a directory that is not empty" refused 125 'data is not empty.*--from data' data --disk sata -- true
check "a directory whose parent is not there" refused 125 'cannot be made' none/slow --disk sata -- true
check "a file" refused 125 'cannot be mounted on' data/a --disk sata -- true
check "more than the disk has" refused 125 'do not fit on sata' slow --disk sata --size 10T -- true
check "next to nothing" refused 125 'at least 1M' slow --disk sata --size 1000 -- true
check "too small for its beginning" refused 125 'give it room' slow --disk sata --size 1M --from data -- true
check "no such program" refused 127 '`./none` cannot be run' slow --disk sata -- ./none
check "no program" refused 126 '`./data` cannot be run' slow --disk sata -- ./data
check "nothing of these stays" test ! -e slow

# Without rights: by fusermount3, or in a user namespace, with a /dev/fuse that is open to everyone as udev makes it.
unprivileged() { # PATH of programs
    local home status
    home=$(mktemp -d /tmp/headworks-nobody.XXXXXX) && chmod 777 "$home" && mknod -m 666 "$home/fuse" c 10 229 || return 1
    cp -L "$HEADWORKS" "$home/headworks" && cp -RP programs "$home"
    unshare -m sh -c 'mount --bind "$0/fuse" /dev/fuse && cd "$0" && exec env PATH="$1" /usr/bin/setpriv --reuid=65534 --regid=65534 --clear-groups \
        "$0/headworks" dir slow --disk sata -- sh -c "echo a >\$dir/a; cat slow/a; exit 3"' "$home" "${1:-$home/programs}" >out 2>err
    status=$?
    ls "$home"/slow && status=99
    rm -rf "$home"
    [ $status -eq 3 ] && [ "$(cat out)" = a ] || { cat out err; return 1; }
}
mkdir programs # without fusermount3
for program in sh cat echo; do ln -s "$(command -v "$program")" "programs/$program"; done
if [ "$(id -u)" -eq 0 ] && unshare -m true 2>/dev/null && command -v setpriv >/dev/null; then
    if command -v fusermount3 >/dev/null; then
        check "nobody has a slow disk by fusermount3" unprivileged /usr/bin:/bin
    else
        skip "nobody has a slow disk by fusermount3" "it is not installed"
    fi
    if setpriv --reuid=65534 --regid=65534 --clear-groups unshare -rm true 2>/dev/null; then
        check "nobody has a slow disk in a user namespace" unprivileged ""
    else
        skip "nobody has a slow disk in a user namespace" "this kernel gives none to users"
    fi
else
    skip "nobody has a slow disk" "this needs root and setpriv to become nobody"
fi

exit $BAD
