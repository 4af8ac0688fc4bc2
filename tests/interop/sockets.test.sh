#!/usr/bin/env bash
# matrix: engine
# seconds: 6
# Where a server listens: stale and live sockets, foreign files, permissions, TCP, locks on images.
. "$(dirname "$0")/lib.sh"

fails_clearly() { # PATTERN ARGUMENTS...: a second server ends with one clear line, and not as if the command line were wrong
    local pattern=$1
    shift
    timeout 10 "$HEADWORKS" serve --engine "$ENGINE" "$@" >"$DIR/second.out" 2>&1
    local status=$?
    cat "$DIR/second.out"
    [ $status -eq 1 ] && grep -q '^headworks: error: ' "$DIR/second.out" && grep -Eqi "$pattern" "$DIR/second.out"
}

# A socket that nobody listens on any more.
"$PYTHON" -c 'import socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1])' "$SOCKET"
check "a stale socket is there" test -S "$SOCKET"
serve "$(spec disk)"
check "a stale socket is taken over" nbdinfo --size "$URI"
mode=$(stat -c %a "$SOCKET")
check "the socket is the owner's alone ($mode)" test $((8#$mode & 8#077)) -eq 0

check "a socket that a live server holds is refused" fails_clearly 'in use|live|listen' -U "$SOCKET" mem:size=1M
check "the first server serves on" nbdinfo --size "$URI"
check "an image that another server holds is refused" fails_clearly 'lock|in use' -U "$DIR/other" "$(spec disk)"
check "also for reading" fails_clearly 'lock|in use' -U "$DIR/other" -r "$(spec disk)"
check "qemu respects the lock" bash -c '! qemu-io -f raw -c "write 0 4k" "$1"' - "$IMAGES/disk.img"
stop_server
# The kernel takes a ring's files back when the process is gone already.
check "the lock went with the server" wait_until 10 qemu-io -f raw -c "write 0 4k" "$IMAGES/disk.img"

serve -r "file:path=$IMAGES/disk.img"
check "two read-only servers share an image" "$HEADWORKS" serve --engine "$ENGINE" -U - -r --run 'nbdinfo --size "$uri"' \
    "file:path=$IMAGES/disk.img"
stop_server

echo precious >"$SOCKET"
check "a file in the socket's place is refused" fails_clearly 'socket' -U "$SOCKET" mem:size=1M
check "and left alone" grep -q precious "$SOCKET"
rm -f "$SOCKET"
check "a folder that is not there is an error" fails_clearly 'no such' -U "$DIR/none/sock" mem:size=1M
check "a path too long for a socket is an error" fails_clearly 'long|108|107' -U "$DIR/$(printf 'x%.0s' {1..120})" mem:size=1M

# One that nobody is given for an outgoing connection meanwhile.
read -r first _ </proc/sys/net/ipv4/ip_local_port_range
port=$("$PYTHON" -c 'import random, socket, sys
s = socket.socket()
while True:
    try:
        s.bind(("127.0.0.1", random.randrange(10000, int(sys.argv[1]))))
        break
    except OSError:
        pass
print(s.getsockname()[1])' "$first")
serve_at -p "$port" mem:size=5M
check "the printed URI is right" test "$(nbdinfo --size "$(sed -n 's/.*uri: //p' "$OUT" "$LOG" | head -n 1)")" = $((5 << 20))
check "it answers on 127.0.0.1" test "$(nbdinfo --size "nbd://127.0.0.1:$port")" = $((5 << 20))
pseudo_random 4 tcp >"$DIR/tcp"
check "bytes over TCP" bash -c 'nbdcopy "$1" "$2" && nbdcopy "$2" - | cmp -n 4194304 - "$1"' - "$DIR/tcp" "nbd://127.0.0.1:$port"
hexport=$(printf ':%04X' "$port")
check "it listens on loopback alone" bash -c '! grep -E "(00000000|^ *[0-9]+: 0{32})$1 [0:]+ 0A" /proc/net/tcp /proc/net/tcp6' - "$hexport"
check "a port in use is refused" fails_clearly 'in use' -p "$port" mem:size=1M
stop_with TERM
check "SIGTERM ends it with 0" test "$STATUS" -eq 0

again() { for _ in $(seq 10); do "$HEADWORKS" serve --engine "$ENGINE" --cache 0 -p "$port" mem:size=5M --run true >"$DIR/again" 2>&1 || { cat "$DIR/again"; return 1; }; done; }
check "a port is free when its server has ended, ten times" again
for _ in 1 2 3; do
    serve_at -p "$port" mem:size=5M
    stop_with KILL
done
check "and when it was killed" again

serve_at -U - mem:size=5M
uri=$(sed -n 's/.*uri: //p' "$OUT" "$LOG" | head -n 1)
check "-U - makes a private socket, which the printed URI names" test "$(nbdinfo --size "$uri")" = $((5 << 20))
stop_with TERM
check "and which goes with the server" test ! -e "${uri##*socket=}"

# Names that others chose: control characters, and bytes that are no UTF-8.
forged=$IMAGES/$'n\nERROR fake.img'
truncate -s 1M "$forged"
serve_at -U "$DIR/"$'s\xff' --control "$CONTROL" "file:path=$forged"
check "a name of an image is no line of the start message" bash -c '! grep -q "^ERROR" "$1" && grep -qF "n\nERROR fake.img" "$1"' - "$OUT"
check "nor of ctl's answers" bash -c '! "$1" ctl "$2" exports | grep -q "^ERROR"' - "$HEADWORKS" "$CONTROL"
check "the URI has the bytes of the path" test "$(nbdinfo --size "$(sed -n 's/^uri: //p' "$OUT")")" = $((1 << 20))
truncate -s 1M "$DIR/base.img"
"$HEADWORKS" image create --base "$DIR/base.img" "$DIR/top.hwo" >/dev/null
check "an overlay on it" ctl add "top=overlay:path=$DIR/top.hwo"
check "a snapshot's name is no line of the answer" bash -c '! "$1" ctl "$2" snapshot top "$3" | grep -q "^ERROR"' - "$HEADWORKS" "$CONTROL" "$DIR/"$'m\nERROR.hwo'
check "an export's name is one that NBD has" bash -c '! "$1" ctl "$2" add "$3=mem:size=1M" 2>"$4" && grep -q "5000 bytes; NBD has names of at most 4096" "$4"' - \
    "$HEADWORKS" "$CONTROL" "$(printf 'n%.0s' {1..5000})" "$DIR/second.out"
stop_server
no_panic
