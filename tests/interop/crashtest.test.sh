#!/usr/bin/env bash
# matrix: once
# Power cuts: `powercut:` and `headworks crashtest` on a log with and without a missing flush, and on SQLite.
. "$(dirname "$0")/lib.sh"

export TMPDIR=$DIR
programs=$HERE/crashtest
log() { echo "$PYTHON $programs/log.py $*"; }
crashtest() { "$HEADWORKS" crashtest "$@" 2>"$DIR/err"; }

# A missing flush is found, and named; the printed command finds the state again.
finds_missing_flush() {
    crashtest --run "$(log load careless)" --check "$(log check)" --cuts 200 --junit "$DIR/junit.xml" >"$DIR/found"
    [ $? -eq 1 ] && grep -q 'record 5 was promised and is not there' "$DIR/found" &&
        grep -q 'write of sector 40+8, after flush 4 was not durable: no flush before the promise "5"' "$DIR/found" &&
        grep -q 'failures="1"' "$DIR/junit.xml" && grep -q 'again: headworks crashtest --again .*crash.hwrec' "$DIR/found"
}
repeats() {
    local again
    again=$(sed -n 's/^ *again: headworks //p' "$DIR/found" | head -n 1)
    eval "\"$HEADWORKS\" $again --json" >"$DIR/again"
    [ $? -eq 1 ] && jq -e '.broken and (.said | contains("record 5"))' "$DIR/again"
}
# All states of each place, of a log of few records: a proof for this run.
exhaustive() { # ARGUMENTS-OF-THE-LOAD...
    crashtest --run "RECORDS=5 $(log load "$@")" --check "RECORDS=5 $(log check)" --exhaustive --json >"$DIR/all"
    local code=$?
    jq -e '.beyond == 0 and .cuts == .changes + .syncs + .promises + 1' "$DIR/all" && return $code
}
holds() { crashtest --cuts 20 --seed 5 "$@" && [ -z "$(ls -d "$DIR"/headworks-crashtest.* 2>/dev/null)" ]; }
breaks() { crashtest "$@"; [ $? -eq 1 ]; }
cannot_run() { # PATTERN ARGUMENTS...
    crashtest "${@:2}"
    [ $? -eq 2 ] && grep -E "$1" "$DIR/err" || { cat "$DIR/err"; return 1; }
}
# By hand: what was flushed is there, of what was not each sector may be, and the server has died.
cut_by_hand() {
    truncate -s 1M "$DIR/cut.img"
    serve --cache 0 --control "$DIR/ctl" "powercut:seed=$1,of=file:path=$DIR/cut.img" other=mem:size=1M
    "$HEADWORKS" ctl "$DIR/ctl" cut other 2>"$DIR/err" && return 1
    grep -q 'has no power to cut; serve it as powercut:of=file:path=IMAGE (EINVAL)' "$DIR/err" || return 1
    qemu-io -f raw -c 'write -P 1 0 64k' -c flush -c 'write -P 2 64k 64k' "nbd+unix:///cut.img?socket=$SOCKET" >/dev/null || return 1
    "$HEADWORKS" ctl "$DIR/ctl" cut cut.img | grep -qx 'cut.img: the power is cut, the server ends' || return 1
    wait "$SERVER"
    [ $? -eq 137 ] || return 1
    cmp -n 65536 "$DIR/cut.img" <(head -c 64K /dev/zero | tr '\0' '\1') &&
        "$PYTHON" -c 'import sys; assert set(open(sys.argv[1], "rb").read()[65536:131072]) <= {0, 2}' "$DIR/cut.img"
}
check "ctl cut: what was flushed is there" cut_by_hand 1
check "also with other luck" cut_by_hand 2
check "a missing flush is found" finds_missing_flush
check "the same state is broken again" repeats
rm -rf "$DIR"/headworks-crashtest.*
check "a log that flushes holds, and nothing is left" holds --run "$(log load)" --check "$(log check)"
check "in all its states" exhaustive
misses() { exhaustive careless; [ $? -eq 1 ]; }
check "and a careless one in some" misses
rm -rf "$DIR"/headworks-crashtest.*
check "torn sectors break nothing, each has a checksum" holds --sector 512 --run "RECORDS=5 $(log load)" --check "RECORDS=5 $(log check)"
check "the same through a page cache" holds --cache 16M --run "$(log load)" --check "$(log check)"
check "a disk that lies breaks it" breaks --lie --cuts 20 --run "$(log load)" --check "$(log check)"
rm -rf "$DIR"/headworks-crashtest.*
check "a cut of older versions is answered with what there is now" cannot_run "cut is gone.*--again RECORD --state" --cut 3:9 --run true --check true
check "a program that fails by itself is no finding" cannot_run 'fails without a power cut' --run false --check true
check "one that writes nothing, too" cannot_run 'wrote nothing' --run true --check true
check "a check that fails by itself, too" cannot_run 'check fails without a power cut' --run "$(log load)" --check false
check "a program that does not end is ended" cannot_run 'did not end within 0.3 s' --timeout 300ms --run "sleep 99 #$DIR" --check true
gone() { ! pgrep -f "sleep 99 #$DIR"; }
check "with what it started" wait_until 10 gone

if "$PYTHON" -c 'import apsw' 2>/dev/null; then
    sqlite() { echo "$PYTHON $programs/sqlite.py $*"; }
    check "SQLite without syncs is broken" breaks --setup "$(sqlite setup)" --run "$(sqlite load OFF)" --check "$(sqlite check)" --cuts 20
    check "SQLite with synchronous=FULL holds" crashtest --setup "$(sqlite setup)" --run "$(sqlite load FULL)" --check "$(sqlite check)" --cuts 40
else
    skip "SQLite" "python3-apsw is not installed"
fi

# The device by itself: the server ends as if killed, and the image has what was flushed.
cut_in_server() {
    truncate -s 1M "$IMAGES/cut.img"
    "$HEADWORKS" serve --engine "$ENGINE" --cache 0 -U "$SOCKET" "powercut:at-flush=2,report=$DIR/report,of=file:path=$IMAGES/cut.img" \
        --run 'qemu-io -f raw -c "write -P 7 0 4k" -c flush -c "write -P 8 8k 4k" -c flush "$uri"'
    [ $? -eq 137 ] && jq -e '.flushes == 2 and .cut' "$DIR/report" && qemu-io -f raw -c 'read -P 7 0 4k' "$IMAGES/cut.img"
}
check "a cut at the second flush keeps what the first covered" cut_in_server
exit $BAD
