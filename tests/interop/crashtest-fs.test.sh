#!/usr/bin/env bash
# matrix: once
# lock: host
# seconds: 80
# `headworks crashtest --fs`: file systems of this kernel, on disks whose power is cut, confirm the causes that the models found.
. "$(dirname "$0")/lib.sh"

export TMPDIR=$DIR PATH=$PATH:/usr/sbin:/sbin
unset GITHUB_ACTIONS
# Cuts are counted: a busy machine has time for all of them.
crashtest() { "$HEADWORKS" crashtest --time 300s "$@" 2>"$DIR/err"; }
store() { echo "$PYTHON -S $HERE/crashtest/stores.py config $1 $2 \$dir"; }
pattern() { crashtest --run "$(store "$1" load)" --check "$(store "$1" check)" --model journal --cuts 40 "${@:2}"; }
# A file that is synced and whose directory is not: ext4, XFS and btrfs keep its name, POSIX need not.
log() {
    crashtest --run 'echo a >$dir/log; sync $dir/log; echo ok' --check 'read x || exit 0; [ -s $dir/log ] || { echo lost; exit 1; }' --cuts 40 "$@"
}
# Whether a loop device of a test is left; its directory names it.
no_loop_device() { ! grep -l "$DIR/" /sys/block/loop*/loop/backing_file 2>/dev/null; }
found() { jq -e "$1" "$DIR/found" || { cat "$DIR/found" "$DIR/err"; return 1; }; }

confirms() { # FILE SYSTEM
    pattern file --fs "$1" --fs-cuts 24 --json >"$DIR/found"
    [ $? -eq 1 ] && found '(.causes[0].confirmed[0] | .cuts > 0 and .undisturbed > 0) and .fs[0].cuts == 24 and .fs[0].unexplained == 0'
}
clears() { # FILE SYSTEM
    pattern both --fs "$1" --fs-cuts 24 --json >"$DIR/found" && found '.causes == [] and .fs[0].broken == 0 and .fs[0].members > 1 and .fs[0].unknown == 0'
}
hole() { # FILE SYSTEM
    local program="$PYTHON -S $HERE/crashtest/hole.py"
    crashtest --setup "$program setup \$dir" --run "$program load \$dir" --check '[ -e $dir/a ]' --model journal --cuts 1 --jobs 1 \
        --seed 4 --fs "$1" --fs-cuts 100 --json >"$DIR/found" && found '.fs[0] | .strangers == 0 and .members > 2 and .unknown == 0'
}
does_not_show() { # FILE SYSTEM
    log --fs "$1" --fs-cuts 24 >"$DIR/found" &&
        grep -q '^not on ext4, XFS or btrfs' "$DIR/found" && grep -q "not seen in 24 cuts of $1 of Linux" "$DIR/found" || { cat "$DIR/found" "$DIR/err"; return 1; }
}

check "an unknown file system is refused" sh -c '! "$HEADWORKS" crashtest --again x --fs vfat 2>&1 | grep -q "ext4, xfs and btrfs are" || exit 0; exit 1'
tried=
for kind in ext4 xfs btrfs; do
    if ! pattern both --fs $kind --fs-cuts 1 >/dev/null; then
        # What is missing is said in a sentence.
        if [ $? -eq 1 ] || ! grep -qE "$kind cannot be (made|mounted)|no directory can be mounted" "$DIR/err"; then
            check "$kind is asked" cat "$DIR/err" /dev/null/none
        else
            skip "$kind of this kernel" "$(tail -n 1 "$DIR/err")"
        fi
        continue
    fi
    tried=$kind
    check "$kind confirms that a rename without a synced directory is lost" confirms $kind
    check "$kind leaves no state that its model lacks, four random programs" "$PYTHON" -S "$HERE/crashtest/sound.py" run "$HEADWORKS" $kind 1 4 20
    check "$kind leaves no state that its model lacks, a hole in a file that has grown" hole $kind
    check "$kind shows nothing against a rename with both syncs" clears $kind
    check "$kind keeps the name of a synced file, which POSIX need not" does_not_show $kind
done
[ -n "$tried" ] || exit $BAD
check "no loop device and no mount is left" sh -c '! grep -q "$1" /proc/self/mountinfo && ! grep -l "$1/" /sys/block/loop*/loop/backing_file' - "$DIR"

# A record needs no second run, and the same seed asks the same.
again() {
    pattern file --record "$DIR/crash.hwrec" >/dev/null
    local one
    for one in 1 2; do
        crashtest --again "$DIR/crash.hwrec" --model journal --cuts 40 --fs $tried --fs-cuts 12 --json >"$DIR/found"
        [ $? -eq 1 ] && found '.causes[0].confirmed[0].cuts > 0' || return 1
    done
}
check "a record is repeated on $tried" again

# Two directories are two disks, and $state loses nothing.
two() {
    crashtest --dirs 2 --run 'echo a >$dir/a; sync $dir/a $dir; echo b >$dir2/b; sync $dir; echo ok; echo b >$state/told' \
        --check 'read x || exit 0; [ -s $dir/a ] || exit 1; [ -e $dir2/b ] || { echo b is lost; [ ! -s $state/told ] || exit 1; exit 1; }' \
        --model journal --cuts 40 --fs $tried --fs-cuts 24 --json >"$DIR/found"
    [ $? -eq 1 ] && found '[.causes[] | select(.said == "b is lost") | .confirmed[0].cuts > 0] == [true]'
}
check "two directories are two file systems" two

# A kill -9 in the middle leaves no mount and no loop device.
killed() {
    "$HEADWORKS" crashtest --again "$DIR/crash.hwrec" --model journal --cuts 1 --fs $tried --fs-cuts 100000 --check 'exit 0' >/dev/null 2>"$DIR/err" &
    local test=$!
    # The check is blind here, so it is one that is not.
    wait "$test" 2>/dev/null
    grep -q 'blind' "$DIR/err" || return 1
    # At any moment: also while it waits for the file system, which waits for its disk, which is served by what is killed.
    for moment in 0.0 0.1 0.2 0.3 0.4 0.5 0.6 0.7 0.8 0.9; do
        "$HEADWORKS" crashtest --again "$DIR/crash.hwrec" --model journal --cuts 1 --fs $tried --fs-cuts 100000 >/dev/null 2>"$DIR/err" &
        test=$!
        wait_until 60 sh -c "grep -l '$DIR/' /sys/block/loop*/loop/backing_file" || return 1
        sleep "$moment"
        kill -9 "$test"
        wait_until 30 gone "$test" || { ps -o stat,wchan:30,cmd "$test"; return 1; }
        wait "$test" 2>/dev/null
        wait_until 30 no_loop_device && ! grep -q "$DIR" /proc/self/mountinfo || return 1
    done
}
# Whether all of a process has ended: the last of its threads, too.
gone() { ! cat "/proc/$1/task/"*/stat 2>/dev/null | sed 's/.*) //' | grep -q '^[^Z]'; }
check "a kill -9 leaves no loop device and no mount" killed

# Without root it says what is missing, before the program runs.
unprivileged() {
    local home
    home=$(mktemp -d /tmp/headworks-nobody.XXXXXX) && chmod 777 "$home" && mknod -m 666 "$home/fuse" c 10 229 && cp -L "$HEADWORKS" "$home/headworks" || return 1
    unshare -m sh -c 'mount --bind "$0/fuse" /dev/fuse && exec env TMPDIR="$0" XDG_RUNTIME_DIR="$0" /usr/bin/setpriv --reuid=65534 --regid=65534 --clear-groups \
        "$0/headworks" crashtest --run "touch $0/ran \$dir" --check true --fs ext4' "$home" >"$DIR/found" 2>"$DIR/err"
    [ $? -eq 2 ] && grep -q 'ext4 cannot be mounted by .*: --fs needs root and loop devices' "$DIR/err" && [ ! -e "$home/ran" ]
    local status=$?
    rm -rf "$home"
    return $status
}
if unshare -m true 2>/dev/null && command -v setpriv fusermount3 >/dev/null; then
    check "nobody is told what is missing" unprivileged
else
    skip "nobody is told what is missing" "no fusermount3 or no mount namespace here"
fi
exit $BAD
