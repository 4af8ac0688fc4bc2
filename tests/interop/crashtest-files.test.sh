#!/usr/bin/env bash
# matrix: once
# seconds: 60
# Power cuts for programs that use files: `headworks crashtest` with $dir, on the rename pattern, SQLite and LMDB, with blind and hostile
# checks, as root and without rights.
. "$(dirname "$0")/lib.sh"

export TMPDIR=$DIR
unset GITHUB_ACTIONS
programs=$HERE/crashtest
store() { echo "$PYTHON -S $programs/stores.py $1 $2 $3 \$dir"; }
packaged() { echo "$PYTHON $programs/stores.py $1 $2 $3 \$dir"; }
crashtest() { "$HEADWORKS" crashtest "$@" 2>"$DIR/err"; }
finds() { # PATTERN ARGUMENTS...: something is broken, and a cause says so
    crashtest "${@:2}" >"$DIR/found"
    [ $? -eq 1 ] && grep -qE "$1" "$DIR/found" || { cat "$DIR/found" "$DIR/err"; return 1; }
}
holds() { # and nothing is left, but for what failures before it left
    rm -rf "$DIR"/headworks-crashtest.*
    crashtest "$@" >"$DIR/found" || { cat "$DIR/found" "$DIR/err"; return 1; }
    [ -z "$(ls -d "$DIR"/headworks-crashtest.* 2>/dev/null)" ]
}
cannot_run() { # PATTERN ARGUMENTS...
    crashtest "${@:2}" >/dev/null
    [ $? -eq 2 ] && grep -E "$1" "$DIR/err" || { cat "$DIR/err"; return 1; }
}

if ! crashtest --run 'echo a >$dir/a; echo ok' --check 'read x && cat $dir/a' --cuts 1 >/dev/null && grep -q 'no directory can be mounted' "$DIR/err"; then
    skip "power cuts for files" "$(cat "$DIR/err")"
    exit 0
fi
rm -rf "$DIR"/headworks-crashtest.*

pattern() { # FUNCTION MODE [ARGUMENTS...]: of the rename pattern
    "$1" ${pattern_said:+"$pattern_said"} --run "$(store config "$2" load)" --check "$(store config "$2" check)" "${@:3}"
}
pattern_said='^[0-9] +config is torn' check "rename without syncs is torn" pattern finds none --cuts 60 --model journal
repeats() {
    local again state
    again=$(sed -n 's/^ *again: headworks //p' "$DIR/found" | head -1)
    state=$(sed -n 's/.*--state \([^@]*\)@\([0-9a-f]*\).*/state \1, directory \2/p' "$DIR/found" | head -1)
    eval "\"$HEADWORKS\" $again --keep-dir \"$DIR/kept\"" >"$DIR/again"
    [ $? -eq 1 ] && grep -q "^$state: " "$DIR/again" && [ -d "$DIR/kept" ] || return 1
    # Another record makes other directories, and is told apart.
    eval "\"$HEADWORKS\" $(sed 's/@./@f/' <<<"$again")" 2>"$DIR/err"
    [ $? -ne 0 ]
}
check "the printed command makes the same directory again" repeats
pattern_said='rename of /config.tmp to /config was not durable: no fsync of / before the promise' \
    check "rename with the file synced is not durable" pattern finds file --cuts 60 --model journal
pattern_said='no fsync of /config.tmp' check "rename with the directory synced is torn" pattern finds directory --cuts 60 --model journal
for model in journal log-tree any; do
    check "rename with both syncs holds in all states under $model" pattern holds both --exhaustive --model $model
done
check "and with torn pages" pattern holds both --exhaustive --model journal --sector 512
seeds() {
    local seed
    for seed in 2 3 4 5 6; do
        pattern_said='rename of' pattern finds file --cuts 200 --model journal --seed $seed --stop-at-first || return 1
        pattern_said='' pattern holds both --cuts 40 --model journal --seed $seed || return 1
    done
}
check "verdicts do not depend on the seed" seeds

# Each promise stands before what the program did next: each of the eight can be lost, not the last alone.
promptly() {
    crashtest --run "$(store config file load)" --check "$(store config file check)" --exhaustive --model journal --json >"$DIR/found"
    [ $? -eq 1 ] && jq -e '.broken >= 8 and .causes[0].why[0] != null' "$DIR/found"
}
check "promises are recorded when they are made" promptly

# Reports, and a record that is explored again.
reports() {
    pattern_said=. pattern finds file --cuts 40 --model journal --json --junit "$DIR/junit.xml" --record "$DIR/crash.hwrec" || return 1
    jq -e '.promises == 8 and .syncs == 8 and .broken > 0 and (.causes[0].effects[0].op == "rename") and .causes[0].states > 0' "$DIR/found" &&
        "$PYTHON" -c 'import sys, xml.etree.ElementTree as tree; suite = tree.parse(sys.argv[1]).getroot(); assert int(suite.get("failures")) == len(suite.findall("testcase/failure")) > 0, suite.attrib' "$DIR/junit.xml"
}
check "JSON and JUnit reports name the cause" reports
explored_again() {
    local first
    first=$(jq -S '[.states, .distinct, .broken, .causes[0].first, .causes[0].hash]' "$DIR/found")
    crashtest --again "$DIR/crash.hwrec" --cuts 40 --model journal --json --jobs 8 >"$DIR/found"
    [ $? -eq 1 ] && [ "$first" = "$(jq -S '[.states, .distinct, .broken, .causes[0].first, .causes[0].hash]' "$DIR/found")" ]
}
check "a record explored again with eight jobs says the same" explored_again
head -c $(($(stat -c %s "$DIR/crash.hwrec") - 7)) "$DIR/crash.hwrec" >"$DIR/cut.hwrec"
check "a record cut short is explored as far as it goes" crashtest --again "$DIR/cut.hwrec" --check 'read x || exit 0; [ -e $dir/config ]' --cuts 5 --model journal
ran="touch '$DIR/ran'; echo a >\$dir/a; sync \$dir/a; echo ok"
check "no model is heard of before the program runs" cannot_run 'model: `nope` is no model' --run "$ran" --check 'cat $dir/a' --model nope
check "and so is a place where no report can be written" cannot_run "junit: no such directory: $DIR/no" --run "$ran" --check 'cat $dir/a' --junit "$DIR/no/x"
check "it has not run" test ! -e "$DIR/ran"
check "what is no record is refused" cannot_run 'this is no record of a crash test' --again "$DIR/err"

# SQLite as Python has it. Its default, FULL, does not sync the directory of its journal.
sqlite() { # FUNCTION LEVEL ARGUMENTS...
    "$1" ${pattern_said:+"$pattern_said"} --setup "$(packaged sqlite x setup)" --run "$(packaged sqlite "$2" load)" --check "$(packaged sqlite "$2" check)" "${@:3}"
}
pattern_said='^1' check "SQLite without syncs is broken" sqlite finds OFF --cuts 30 --model journal --stop-at-first
pattern_said='unlink of /db-journal was not durable: no fsync of / before the promise' \
    check "SQLite with synchronous=FULL loses a promised row" sqlite finds FULL --cuts 100 --model journal
check "SQLite with synchronous=EXTRA holds" sqlite holds EXTRA --cuts 80 --model journal
check "also if the power fails again in its recovery" sqlite holds EXTRA --cuts 8 --recovery 3 --model journal
recovered() { grep -qE '^[1-9][0-9]* states whose recovery writes, [1-9][0-9]* cuts inside it' "$DIR/found"; }
check "and recoveries were cut" recovered

if "$PYTHON" -c 'import lmdb' 2>/dev/null; then
    lmdb() {
        "$1" ${pattern_said:+"$pattern_said"} --setup "$(packaged lmdb x setup)" --run "$(packaged lmdb "$2" load)" --check "$(packaged lmdb "$2" check)" "${@:3}"
    }
    pattern_said='^1' check "LMDB without syncs is broken" lmdb finds nosync --cuts 60 --model journal --stop-at-first
    check "LMDB holds" lmdb holds default --cuts 60 --model journal
else
    skip "LMDB" "python3-lmdb is not installed"
fi

# Other stores where they are installed; each against the table of pairs.py.
pairs() { "$PYTHON" "$programs/pairs.py" "$HEADWORKS" --cuts 40 "$1"; }
for pair in log/both sqlite/WAL-FULL sqlite/WAL-NORMAL leveldb/nosync; do
    case $pair in leveldb/*) "$PYTHON" -c 'import plyvel' 2>/dev/null || { skip "$pair" "python3-plyvel is not installed"; continue; } ;; esac
    check "$pair has its verdicts under three models" pairs $pair
done

# The directory is a file system: the same results and error numbers as tmpfs.
other=$(mktemp -d /dev/shm/headworks-same.XXXXXX)
same() { # SEED
    mkdir "$other/$1"
    crashtest --run "$PYTHON $programs/same.py \$dir $other/$1 $1" --check 'read x || exit 0; echo not checked; false' --cuts 1 >/dev/null
    # The program ended well, and the check is what fails.
    grep -q 'the check fails without a power cut: not checked' "$DIR/err" || { cat "$DIR/err"; return 1; }
}
for seed in 1 2 3; do
    check "random operations are those of tmpfs, seed $seed" same "$seed"
done
rm -rf "$other"

# What cannot be tested says why.
check "a blind check is told" cannot_run 'the check is blind' --run 'echo a >$dir/a; echo ok' --check true
in_lines() { # what a check says has a line of its own for each, and no escape for their ends
    "$HEADWORKS" crashtest --run 'echo a >$dir/a; echo ok' --check 'echo one; printf "tw\\033o\n"; echo wrong; exit 1' 2>"$DIR/err" && return 1
    cat "$DIR/err"
    grep -qx 'headworks: error: the check fails without a power cut: wrong' "$DIR/err" && grep -qx '    one' "$DIR/err" &&
        grep -qxF '    tw\u{1b}o' "$DIR/err" && ! grep -qF '\n' "$DIR/err"
}
check "a failing check's lines are lines" in_lines
check "a check that fails by itself" cannot_run 'the check fails without a power cut: wrong' --run 'echo a >$dir/a; echo ok' --check 'echo wrong; exit 1'
check "a program that promises nothing" cannot_run 'promised nothing' --run 'echo a >$dir/a' --check '[ -e $dir/a ]'
check "a program that changes nothing" cannot_run 'changed nothing' --run 'echo ok #$dir' --check true
check "a program that fails" cannot_run 'fails without a power cut: exit status: 3.*oh' --run 'echo $dir oh >&2; exit 3' --check true
check "a program that hangs" cannot_run 'did not end within 0.3 s' --timeout 300ms --run 'sleep 99 #$dir' --check true
check "a record beyond its limit" cannot_run 'the record has more than' --record-max 4M --run 'head -c 8M /dev/zero >$dir/a; echo ok' --check true
check "an option of disks" cannot_run 'is of a disk' --lie --run 'echo $dir' --check true
full() { holds --size 1M --run 'head -c 4M /dev/zero >$dir/a && exit 1; echo ok; sync -d $dir/a; echo ok' --check 'read x; read y || exit 0; [ -e $dir/a ]' --cuts 5 --model journal; }
check "a full directory says ENOSPC" full

# Checks that do not end, or leave processes.
pattern_said='the check did not end within 0.3 s' check "a check that hangs is broken and ended" finds 'the check did not end within 0.3 s' --timeout 300ms --run 'echo a >$dir/a; echo ok' --check 'grep -q a $dir/a || sleep 99' --cuts 5 --jobs 1 --model journal
daemons() {
    local time=77.$RANDOM
    crashtest --run 'echo a >$dir/a; sync $dir/a; sync $dir; echo ok' --check "$(store daemon $time check); read x || exit 0; [ -e \$dir/a ]" --cuts 3 --jobs 1 >/dev/null
    grep -q 'processes that the programs left behind were ended' "$DIR/err" && ! pgrep -f "sleep $time"
}
check "daemons of a check are ended" daemons

# Two disks: syncs of one do not make the other durable. $state is the user's memory.
two() { finds 'create of \$dir2/b was not durable' --dirs 2 --run 'echo a >$dir/a; sync $dir/a $dir; echo b >$dir2/b; sync $dir; echo ok' --check 'read x || exit 0; [ -s $dir/a ] && [ -e $dir2/b ]' --exhaustive --model journal; }
check "two directories are two disks" two
state() { finds 'create of /a' --run 'echo a >$dir/a; echo a >$state/told' --check '[ ! -e $state/told ] || [ -e $dir/a ]' --exhaustive --model journal; }
check '$state loses nothing' state

# A kill -9 leaves no mount and no process that hangs.
killed() {
    "$HEADWORKS" crashtest --run 'echo a >$dir/a; echo ok; exec sleep 99' --check true >/dev/null 2>&1 &
    local test=$!
    wait_until 10 test -e "/proc/$test/task" || return 1
    wait_until 10 eval "ls '$DIR'/headworks-crashtest.$test/run.log" || return 1
    # The shell has become its last command: what it starts would outlive it.
    wait_until 10 pgrep -x -P "$test" sleep || return 1
    pkill -9 -P "$test"
    kill -9 "$test"
    wait "$test" 2>/dev/null
    rm -rf "$DIR/headworks-crashtest.$test"
    ! grep -q "headworks-crashtest.$test" /proc/self/mountinfo
}
check "a kill -9 leaves no mount" killed

# Ctrl-C ends it as an error does: without mounts, processes and directories. Ignored signals stay ignored.
interrupted() { # SIGNAL
    "$HEADWORKS" crashtest --run 'echo a >$dir/a; echo ok; exec sleep 99' --check true >/dev/null 2>"$DIR/err" &
    local test=$!
    wait_until 10 pgrep -x -P "$test" sleep || return 1
    kill -"$1" "$test"
    wait "$test"
    [ $? -eq "$2" ] && grep -q '^headworks: error: interrupted by signal' "$DIR/err" && [ ! -e "$DIR/headworks-crashtest.$test" ] &&
        ! grep -q "headworks-crashtest.$test" /proc/self/mountinfo && [ ! -e "/dev/shm/headworks-crashtest.$test" ]
}
check "SIGTERM leaves nothing" interrupted TERM 143
# Two signals at once, so that the second comes before the test has ended.
twice() { # FIRST SECOND
    "$HEADWORKS" crashtest --run 'echo a >$dir/a; echo ok; exec sleep 99' --check true >/dev/null 2>"$DIR/err" &
    local test=$! status
    wait_until 10 pgrep -x -P "$test" sleep || return 1
    kill -STOP "$test" && kill -"$1" "$test" && kill -"$2" "$test" && pkill -9 -x -P "$test" sleep && kill -CONT "$test"
    wait "$test"
    status=$?
    rm -rf "$DIR/headworks-crashtest.$test" "/dev/shm/headworks-crashtest.$test"
    [ "$status" -gt 128 ] && ! grep -q 'interrupted by signal' "$DIR/err" && wait_until 10 eval "! grep -q headworks-crashtest.$test /proc/self/mountinfo"
}
check "a second signal of another kind ends it at once" twice TERM HUP
check "a hang-up leaves nothing" interrupted HUP 129

# Without rights: by fusermount3, or in a user namespace, with a /dev/fuse that is open to everyone as udev makes it.
unprivileged() { # PATH of programs
    local home status
    home=$(mktemp -d /tmp/headworks-nobody.XXXXXX) && chmod 777 "$home" && mknod -m 666 "$home/fuse" c 10 229 || return 1
    cp -L "$HEADWORKS" "$home/headworks" && cp -RP "$DIR/programs" "$home"
    unshare -m sh -c 'mount --bind "$0/fuse" /dev/fuse && exec env TMPDIR="$0" XDG_RUNTIME_DIR="$0" PATH="$1" /usr/bin/setpriv --reuid=65534 --regid=65534 --clear-groups \
        "$0/headworks" crashtest --run "echo a >\$dir/a; echo ok" --check "read x || exit 0; [ -s \$dir/a ]" --exhaustive --model journal' "$home" "${1:-$home/programs}" >"$DIR/found" 2>"$DIR/err"
    status=$?
    rm -rf "$home"
    [ $status -eq 1 ] && grep -q 'create of /a was not durable' "$DIR/found" || { cat "$DIR/found" "$DIR/err"; return 1; }
}
# The same programs without fusermount3.
mkdir "$DIR/programs"
for program in sh cat echo; do ln -s "$(command -v "$program")" "$DIR/programs/$program"; done
if [ "$(id -u)" -eq 0 ] && unshare -m true 2>/dev/null && command -v setpriv >/dev/null; then
    if command -v fusermount3 >/dev/null; then
        check "nobody tests by fusermount3" unprivileged /usr/bin:/bin
    else
        skip "nobody tests by fusermount3" "it is not installed"
    fi
    if setpriv --reuid=65534 --regid=65534 --clear-groups unshare -rm true 2>/dev/null; then
        check "nobody tests in a user namespace" unprivileged ""
    else
        skip "nobody tests in a user namespace" "this kernel gives none to users"
    fi
else
    skip "nobody tests" "this run has no rights itself"
fi
exit $BAD
