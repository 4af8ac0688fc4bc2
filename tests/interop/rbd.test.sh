#!/usr/bin/env bash
# matrix: once
# Images of a real Ceph cluster (scripts/ceph): contents beside `rbd export`, errors, the lock, a client that is shut out, an OSD that is
# stopped and killed, and ends of the server.
. "$(dirname "$0")/lib.sh"

CLUSTER=$DIR/ceph
export CEPH_CONF=$CLUSTER/ceph.conf
started=$("$HERE/../../scripts/ceph" start "$CLUSTER" 2>&1)
case $? in
0) ;;
77) skip "images of a Ceph cluster" "$started"; exit 0 ;;
*) say "not ok" "a cluster starts"; quote <<<"$started"; exit 1 ;;
esac
end_cluster() {
    "$HERE/../../scripts/ceph" stop "$CLUSTER"
    cleanup
}
trap end_cluster EXIT
osd() { cat "$CLUSTER/run/osd.pid"; }

VOL=rbd:image=rbd/vol,conf=$CEPH_CONF
rbd create --size 64M rbd/vol
rbd create --size 8M --image-feature layering rbd/lockless
pseudo_random 48 rbd >"$DIR/data"
truncate -s 64M "$DIR/data"

refused() { # PATTERN SPEC
    local output
    output=$("$HEADWORKS" serve --engine "$ENGINE" --run true "$2" 2>&1) && { echo "not refused: $output"; return 1; }
    echo "said: $output"
    [ "$(grep -c '' <<<"$output")" -eq 1 ] && grep -Eq -- "$1" <<<"$output"
}
# Those that wait for monitors: beside the others.
sed "s/^mon_host = .*/mon_host = 127.0.0.1:1/" "$CEPH_CONF" >"$DIR/down.conf"
ceph-authtool --create-keyring "$DIR/wrong.keyring" --gen-key -n client.admin >/dev/null
sed "s|^keyring = .*|keyring = $DIR/wrong.keyring|" "$CEPH_CONF" >"$DIR/wrong.conf"
for case in "down:rbd:image=rbd/vol,conf=$DIR/down.conf" "keyless:$VOL,user=bob" "wrong-key:rbd:image=rbd/vol,conf=$DIR/wrong.conf"; do
    (check "refused within 30 s: ${case%%:*}" timeout 30 bash -c \
        "$(declare -f refused); HEADWORKS=$HEADWORKS ENGINE=$ENGINE; refused \"\$@\"" - \
        'rbd rbd/vol: .*(monitors of the cluster do not answer|no key of) ' "${case#*:}" >"$DIR/refused.${case%%:*}") &
done
waiting=$(jobs -p)

# The contents, uncached, beside what the cluster has.
serve --control "$CONTROL" "$VOL"
check "a copy to it" nbdcopy --flush "$DIR/data" "$(at '')"
check "is in the cluster" bash -c 'rbd export --no-progress rbd/vol - | cmp - "$1"' - "$DIR/data"
check "and read back" bash -c 'nbdcopy "$1" - | cmp - "$2"' - "$(at '')" "$DIR/data"
change() { # COMMANDS of qemu-io for both
    qemu-io -f raw "$@" "$(at '')" && qemu-io -f raw "$@" "$DIR/data"
}
check "zeros, discards and odd writes" change -c "write -z 1M 3M" -c "write -z -u 9M 5000k" -c "write -P 7 12345 6789" \
    -c "discard 20M 8M" -c "write -P 9 21M 64k" -c "write -f -P 3 33M 4k" -c flush
check "are in the cluster" bash -c 'rbd export --no-progress rbd/vol - | cmp - "$1"' - "$DIR/data"
check "the block status is a whole" bash -c '[ "$(nbdinfo --map --totals "$1" | awk "{ print \$1 }")" = 67108864 ]' - "$(at '')"
check "a second export shares it" ctl add "again=$VOL,read-only=on"
check "with the same bytes" bash -c 'nbdcopy "$1" - | cmp - "$2"' - "$(at again)" "$DIR/data"
check "not with another user" fails 1 'differs from another export' add "other=rbd:image=rbd/vol,conf=$CEPH_CONF,user=bob"
check "a cluster's size is not ours" fails 1 '.' resize default 128M
check "an upgrade names the lock" fails 1 'image of a Ceph cluster, whose lock cannot be handed over' upgrade

# Other clients, and what is not there.
check "refused: a second server" refused 'another client has its lock \(.*\); stop that client, or shut it out with takeover=on' "$VOL"
check "rbd's bench is refused, too" bash -c '! timeout 20 rbd bench --io-type write --io-total 1M --io-size 4K rbd/vol -c "$1" >/dev/null 2>&1' - "$CEPH_CONF"
check "refused: no pool" refused 'there is no pool .nowhere.' "rbd:image=nowhere/vol,conf=$CEPH_CONF"
check "refused: no image" refused 'there is no such image' "rbd:image=rbd/nothing,conf=$CEPH_CONF"
check "refused: no snapshot" refused 'there is no such image' "rbd:image=rbd/vol@nothing,conf=$CEPH_CONF"
check "refused: no configuration" refused "$DIR/none.conf cannot be read: .*; name it by conf=PATH" "rbd:image=rbd/vol,conf=$DIR/none.conf"
check "refused: no lock in the image" refused 'it has no exclusive lock; enable it: rbd feature enable rbd/lockless exclusive-lock' \
    "rbd:image=rbd/lockless,conf=$CEPH_CONF"
printf '[[export]]\nname = "vol"\nrbd = { image = "rbd/vol", conf = "%s" }\n' "$CEPH_CONF" >"$DIR/main.toml"
check "an inspection takes no lock" "$HEADWORKS" check "$DIR/main.toml"

# A snapshot does not change.
rbd snap create --no-progress rbd/vol@before
check "a snapshot is served beside it" ctl add "snap=rbd:image=rbd/vol@before,conf=$CEPH_CONF"
cp "$DIR/data" "$DIR/before"
check "while the head changes" change -c "write -P 77 0 1M"
check "it is as it was" bash -c 'nbdcopy "$1" - | cmp - "$2"' - "$(at snap)" "$DIR/before"
check "and read-only" bash -c '! qemu-io -f raw -c "write 0 512" "$1" 2>/dev/null' - "$(at snap)"
check "it is removed" ctl remove snap

# Overlays on a snapshot, from a local file.
overlay=$IMAGES/on-snapshot.hwo
check "an overlay on a snapshot is made" "$HEADWORKS" image create --base "rbd:image=rbd/vol@before,conf=$CEPH_CONF" "$overlay"
check "it is served beside the image" ctl add "over=overlay:path=$overlay,backing=allow"
check "it reads as the snapshot" bash -c 'nbdcopy "$1" - | cmp - "$2"' - "$(at over)" "$DIR/before"
check "it is written" qemu-io -f raw -c 'write -P 66 1M 64k' -c flush -c 'read -P 66 1M 64k' "$(at over)"
check "the overlay is removed" ctl remove over
check "flat it is the snapshot with what was written" bash -c '"$1" image flatten --backing allow "$2" "$3.flat" && cp "$3" "$3.wanted" &&
    qemu-io -f raw -c "write -P 66 1M 64k" "$3.wanted" >/dev/null && cmp "$3.flat" "$3.wanted"' - "$HEADWORKS" "$overlay" "$DIR/before"
stop_server
check "the lock is given back" bash -c '[ -z "$(rbd lock ls rbd/vol)" ]'

# With a cache: what was flushed is in the cluster.
CACHE=32M serve --control "$CONTROL" "$VOL"
check "cached writes and a flush" change -c "write -P 5 40M 2M" -c flush
check "are in the cluster, too" bash -c 'rbd export --no-progress rbd/vol - | cmp - "$1"' - "$DIR/data"

# An OSD that stops for a while, and one that is killed, below io_timeout: clients hear of neither.
rm -f "$DIR/stop"
script rbd.py records "$SOCKET" "$DIR/stop" &
client=$!
check "the OSD stops" kill -STOP "$(osd)"
check "a request waits" wait_until 20 says_like ', [1-9][0-9]* in flight; depth' stats
check "the OSD goes on" kill -CONT "$(osd)"
kill -9 "$(osd)"
check "an OSD is killed and started again" "$HERE/../../scripts/ceph" osd "$CLUSTER"
touch "$DIR/stop"
wait $client
check "records are right across both" test $? -eq 0
stop_server

# Another server takes the image over: the first one cannot write, and its clients hear it.
serve --control "$CONTROL" "$VOL"
rm -f "$DIR/ready"
script rbd.py shut-out "$SOCKET" "$DIR/ready" &
client=$!
check "the first server writes" wait_until 20 test -e "$DIR/ready"
"$HEADWORKS" serve --engine "$ENGINE" --cache 0 -U "$DIR/second" --control "$DIR/second.ctl" "$VOL,takeover=on" >"$DIR/second.out" 2>&1 &
second=$!
check "the second server takes over" wait_until 20 qemu-io -f raw -c "write -P 66 0 8M" -c flush "nbd+unix:///?socket=$DIR/second"
wait $client
check "the client of the first one heard it" test $? -eq 0
check "its export is suspect" says_like '^default .* suspect' exports
check "its log says why" grep -q 'the cluster has shut this server out, another client writes the image now' "$LOG"
stop_with TERM
no_panic
check "nothing of it arrived after that" qemu-io -f raw -c "read -P 66 0 8M" "nbd+unix:///?socket=$DIR/second"
kill "$second"
wait "$second"
check "the second server ends with 0" test $? -eq 0

# With a cache: what it holds is void then.
CACHE=32M serve --control "$CONTROL" "$VOL"
rm -f "$DIR/ready"
script rbd.py void "$SOCKET" "$DIR/ready" &
client=$!
check "a client of a cached export reads and writes" wait_until 20 test -e "$DIR/ready"
"$HEADWORKS" serve --engine "$ENGINE" --cache 0 -U "$DIR/third" --control "$DIR/third.ctl" "$VOL,takeover=on" >"$DIR/third.out" 2>&1 &
third=$!
check "a third server takes over" wait_until 20 qemu-io -t none -f raw -c "write -P 77 0 8M" "nbd+unix:///?socket=$DIR/third"
# What the other had acknowledged is lost, and one of its clients may have come over.
check "and refuses flushes" bash -c '! qemu-io -f raw -c flush "$1"' - "nbd+unix:///?socket=$DIR/third"
check "until the loss is accepted" "$HEADWORKS" ctl "$DIR/third.ctl" discard-failed default --yes
check "then it flushes" qemu-io -f raw -c "write -P 77 0 8M" -c flush "nbd+unix:///?socket=$DIR/third"
wait $client
check "the cache of the other answers nothing any more" test $? -eq 0
check "what it did not write is named" says_like '^default .* suspect' exports
stop_with TERM
no_panic
check "its dirty data do not arrive" qemu-io -f raw -c "read -P 77 0 8M" "nbd+unix:///?socket=$DIR/third"
kill "$third"
wait "$third"

# Reads and writes wait for an OSD that stopped: the server ends in its time, and the next one has what was flushed.
serve --control "$CONTROL" --stop-timeout 3s "$VOL"
script rbd.py stuck "$SOCKET" "$DIR/flushed" &
client=$!
check "a client has flushed" wait_until 20 test -e "$DIR/flushed"
check "the OSD stops again" kill -STOP "$(osd)"
touch "$DIR/flushed.go"
check "many operations wait for it" wait_until 20 says_like ', 6[0-9] in flight; depth' stats
began=$SECONDS
stop_with TERM 10
check "a stop with operations in flight ends" test "$STATUS" -eq 1
check "within its limit" test $((SECONDS - began)) -le 4
no_panic
wait $client
check "the OSD goes on after it" kill -CONT "$(osd)"
began=$SECONDS
serve --control "$CONTROL" "$VOL,takeover=on"
check "the next server has the image at once" test $((SECONDS - began)) -le 10
check "with what was flushed" qemu-io -f raw -c "read -P 0x46 0 256k" "$(at '')"
check "which writes" qemu-io -f raw -c "write -P 67 1M 256k" -c flush "$(at '')"
check "nothing late replaces that" qemu-io -f raw -c "read -P 67 1M 256k" "$(at '')"
stop_server

# The cluster is gone: the server stops in its time, and says what is not written.
CACHE=32M serve --stop-timeout 2s "$VOL"
kill -STOP "$(osd)"
script rbd.py dirty "$SOCKET"
stop_with TERM 10
check "a stop without the cluster ends" test "$STATUS" -eq 1
check "with what is lost" grep -Eq '64 KiB|65536' "$LOG"
kill -CONT "$(osd)"

# shellcheck disable=SC2086 # one word each
wait $waiting
cat "$DIR"/refused.*
! grep -q '^not ok' "$DIR"/refused.* || BAD=1

# Without the library: as root, in a namespace where it is an empty file.
library=$(ldconfig -p 2>/dev/null | sed -n 's/.*librbd\.so\.1 .*=> //p' | head -n 1)
if [ "$(id -u)" -eq 0 ] && [ -n "$library" ] && unshare -m true 2>/dev/null; then
    hidden() {
        local output
        output=$(unshare -m sh -c 'mount --bind /dev/null "$1" && exec "$2" serve --run true "$3"' - "$(realpath "$library")" "$HEADWORKS" "$VOL" 2>&1)
        echo "said: $output"
        grep -Eq "Ceph's library librbd.so.1 cannot be loaded .*; install the package librbd1" <<<"$output"
    }
    check "refused: no library" hidden
else
    skip "refused: no library" "a namespace needs root"
fi
