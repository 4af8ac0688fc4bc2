#!/usr/bin/env bash
# What every file of the interop tests sources: checks, a server, and its end.
#
# The runner sets:  HEADWORKS  the binary        ENGINE   uring | threads
#                   DIR        a scratch folder  BACKEND  file | tmpfs | mem (for the files that ask for it)
#                   IMAGES     a scratch folder on the backend's filesystem
#                   PYTHON     a python that has libnbd's module
#                   CACHE      the page cache of the servers, 0 for most files: they look at the path below it
# A file prints `ok - WHAT` or `not ok - WHAT` for each check, `skip - WHAT # REASON` for what cannot be tried.
set -u -o pipefail

SIZE_MIB=128
SIZE=$((SIZE_MIB << 20))
SOCKET=$DIR/sock
# `read` by the files that source this one.
# shellcheck disable=SC2034
URI="nbd+unix:///?socket=$SOCKET"
HERE=$(dirname "${BASH_SOURCE[0]}")
CONTROL=$DIR/ctl

SERVER=0          # the process, 0 when none runs
LOG=$DIR/log      # what it says on stderr
OUT=$DIR/out      # what it says on stdout
STATUS=0          # how the last one ended
BAD=0

say() { # ok|not ok, WHAT
    printf '%s - %s\n' "$1" "$2"
    [ "$1" = ok ] || BAD=1
}

quote() { sed 's/^/#   /' | tail -n 30; }

# Runs a command whose standard output is a pipe that nothing reads any more.
without_reader() { # COMMAND...
    "$PYTHON" -c 'import os, subprocess, sys
read, write = os.pipe()
os.close(read)
sys.exit(subprocess.run(sys.argv[1:], stdout=write).returncode)' "$@"
}

# Runs a command, in a subshell; it succeeding is the check. Its output is shown only when it fails.
check() { # WHAT COMMAND...
    local what=$1 output status
    shift
    output=$("$@" 2>&1)
    status=$?
    if [ $status -eq 0 ]; then
        say ok "$what"
        return 0
    fi
    say "not ok" "$what"
    printf '%s\n' "exit $status: $*" "$output" | quote
    if [ -s "$LOG" ]; then
        printf '%s\n' "the server said:" | cat - "$LOG" | quote
    fi
    return 1
}

skip() { printf 'skip - %s # %s\n' "$1" "$2"; }

# Waits for a condition, not for a time: the limit only turns a hang into a failure.
wait_until() { # SECONDS COMMAND...
    local limit=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $limit ] || return 1
        sleep 0.02
    done
}

# A zombie is gone: only its parent, this shell, still has to ask for its status.
is_gone() {
    local stat
    stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 0
    [[ $stat == *") Z "* ]]
}
is_up_or_gone() { grep -Eq 'uri"?: *' "$OUT" "$LOG" || is_gone "$SERVER"; }

# The backend's specification for an image called NAME.
spec() { # NAME [SIZE]
    case $BACKEND in
    mem) echo "mem:size=${2:-$SIZE}" ;;
    *) echo "file:path=$IMAGES/$1.img,size=${2:-$SIZE}" ;;
    esac
}

# Starts a server; it is up when it has named its URIs. Returns 1 when it ended instead.
launch() { # ARGUMENTS...
    : >"$OUT"
    : >"$LOG"
    # The last --cache counts.
    "$HEADWORKS" serve --engine "$ENGINE" --cache "${CACHE:-0}" "$@" >"$OUT" 2>"$LOG" &
    SERVER=$!
    wait_until 20 is_up_or_gone
    if is_gone "$SERVER"; then
        wait "$SERVER"
        STATUS=$?
        SERVER=0
        return 1
    fi
}

# Starts the server that the rest of the file needs, or ends the file.
serve() { serve_at -U "$SOCKET" "$@"; }
serve_at() { # ARGUMENTS, with those that say where...
    launch "$@" && return 0
    say "not ok" "the server starts: serve $*"
    printf '%s\n' "exit $STATUS" | cat - "$LOG" | quote
    exit 1
}

# Sends a signal and waits for the end; STATUS is how it ended, 255 when it did not.
stop_with() { # SIGNAL [SECONDS]
    # Signal 0's process would be this whole group.
    [ "$SERVER" -ne 0 ] || return 1
    kill "-$1" "$SERVER"
    if ! wait_until "${2:-20}" is_gone "$SERVER"; then
        STATUS=255
        return 1
    fi
    wait "$SERVER" 2>/dev/null
    STATUS=$?
    SERVER=0
}

# Cuts a stop short that has begun: signals until the server says that it ends at once, then waits for its end.
stop_at_once() {
    signalled() { kill -TERM "$SERVER"; grep -q 'ending at once' "$LOG" || is_gone "$SERVER"; }
    wait_until 20 signalled
    stop_with CONT "$@"
}

# The ordinary end of a server: asked to stop it exits 0, takes its socket with it, and never panicked.
stop_server() {
    stop_with TERM
    check "SIGTERM ends the server with 0" test "$STATUS" -eq 0
    check "its socket is gone" test ! -e "$SOCKET"
    no_panic
}

no_panic() {
    check "no panic" sh -c '! grep -n panicked "$1"' - "$LOG"
}

# A script that prints its own `ok` and `not ok` lines; ending in any other way is a failure.
script() { # FILE ARGUMENTS...
    "$PYTHON" "$HERE/$1" "${@:2}" 2>"$DIR/script.err"
    local status=$?
    [ $status -eq 0 ] && return 0
    BAD=1
    if [ $status -ne 1 ] || [ -s "$DIR/script.err" ]; then
        say "not ok" "$1 runs to its end (exit $status)"
        quote <"$DIR/script.err"
    fi
    printf '%s\n' "the server said:" | cat - "$LOG" | quote
}

# The URI of an export.
at() { echo "nbd+unix:///$1?socket=$SOCKET"; } # NAME

# The control socket of a server that was started with --control "$CONTROL".
ctl() { "$HEADWORKS" ctl "$CONTROL" "$@"; }
says() { # OUTPUT ARGUMENTS...: the command prints this
    local output
    output=$(ctl "${@:2}" 2>&1) || { echo "$output"; return 1; }
    echo "said: $output"
    [ "$output" = "$1" ]
}
says_like() { # PATTERN ARGUMENTS...: a line of the output matches
    local output
    output=$(ctl "${@:2}" 2>&1) || { echo "$output"; return 1; }
    echo "said: $output"
    grep -Eq -- "$1" <<<"$output"
}
fails() { # STATUS PATTERN ARGUMENTS...: one line, which says what is right
    local output
    output=$(ctl "${@:3}" 2>&1)
    local status=$?
    echo "exit $status: $output"
    [ $status -eq "$1" ] && [ "$(wc -l <<<"$output")" -eq 1 ] && grep -q '^headworks: error: ' <<<"$output" && grep -Eq -- "$2" <<<"$output"
}

refuses() { # PATTERN COMMAND...: one line, which says what is right
    local output
    output=$("${@:2}" 2>&1)
    local status=$?
    echo "exit $status: $output"
    [ $status -eq 1 ] && [ "$(wc -l <<<"$output")" -eq 1 ] && grep -Eq -- "$1" <<<"$output"
}

# The same bytes every time for a seed, and none of them a run of zeros.
pseudo_random() { # MIB SEED
    "$PYTHON" -c 'import random, sys; sys.stdout.buffer.write(random.Random(sys.argv[2]).randbytes(int(sys.argv[1]) << 20))' "$1" "$2"
}

cleanup() {
    [ "$SERVER" -eq 0 ] || kill -9 "$SERVER" 2>/dev/null
    [ $BAD -eq 0 ] || exit 1
}
trap cleanup EXIT
trap 'exit 1' TERM INT
