#!/usr/bin/env bash
# matrix: engine
# seconds: 10
# Exports of parts of an image, by `partition`, `offset` and `length`: foreign clients beside the bytes of the image.
. "$(dirname "$0")/lib.sh"

command -v sfdisk >/dev/null || { skip "parts of an image" "no sfdisk (scripts/setup test)"; exit 0; }

# Two partitions of a GPT, the second one at an odd sector.
DISK=$IMAGES/disk.img
truncate -s 64M "$DISK"
printf 'label: gpt\nstart=2048, size=32768\nstart=34817, size=65535\n' | sfdisk -q "$DISK"
dd if=/dev/urandom of="$DISK" bs=1M seek=1 count=48 conv=notrunc status=none
cp "$DISK" "$DIR/before.img"
FIRST="2048 32768" SECOND="34817 65535"

bytes_of() { dd if="$1" bs=512 skip="$2" count="$3" status=none; } # IMAGE SECTOR SECTORS
size_is() { [ "$(nbdinfo --size "$(at "$1")")" = "$2" ]; }          # EXPORT BYTES
is_copied() { # EXPORT IMAGE SECTOR SECTORS: the export has these bytes of the image
    nbdcopy --request-size=65536 "$(at "$1")" "$DIR/copied.img" && bytes_of "$2" "$3" "$4" | cmp - "$DIR/copied.img"
}
on() { qemu-io -f raw "$(at "$1")" "${@:2}"; } # EXPORT -c COMMAND...
has() { ! on "$@" | tee /dev/stderr | grep -q 'Pattern verification failed'; }

for cache in 0 16M; do
    CACHE=$cache serve --control "$CONTROL" "whole=file:path=$DISK" "p1=file:path=$DISK,partition=1" "p2=file:path=$DISK,partition=2" \
        "odd=file:path=$DISK,offset=63s" "past=file:path=$DISK,offset=1,length=1000001"
    check "sizes are those of the table ($cache)" size_is p1 16777216
    check "and of the second partition ($cache)" size_is p2 33553920
    # shellcheck disable=SC2086 # two words
    check "nbdcopy reads the first partition ($cache)" is_copied p1 "$DISK" $FIRST
    # shellcheck disable=SC2086
    check "and the second ($cache)" is_copied p2 "$DISK" $SECOND
    check "what begins at sector 63 ($cache)" is_copied odd "$DISK" 63 131009
    check "what begins at byte 1 has its size ($cache)" size_is past 1000001
    past() { nbdcopy "$(at past)" "$DIR/copied.img" && cmp -i 1:0 -n 1000001 "$DISK" "$DIR/copied.img"; }
    check "and its bytes ($cache)" past
    script parts.py model "$SOCKET" "$DISK" "whole=0" "p1=$((2048 * 512))" "p2=$((34817 * 512))" "odd=32256" "past=1"
    check "what a partition writes is in the whole ($cache)" on p2 -c 'write -P 0x5a 12345 70000' -c flush
    check "at its place ($cache)" has whole -c "read -P 0x5a $((34817 * 512 + 12345)) 70000"
    check "and in another part over it ($cache)" has odd -c "read -P 0x5a $((34817 * 512 + 12345 - 63 * 512)) 70000"
    check "the block status of a part has its length ($cache)" bash -c 'test "$(nbdinfo --map --totals "$1" | awk "{ sum += \$1 } END { print sum }")" = 33553920' - "$(at p2)"
    check "a partition that is missing is refused with those that there are ($cache)" \
        fails 1 'has no partition 3; there are 1 \(16 MiB\), 2 \(31.9 MiB\)' add "p3=file:path=$DISK,partition=3"
    check "the whole image can be named again, in parts ($cache)" ctl add "again=file:path=$DISK,partition=2,read-only=off"
    check "which read what was written ($cache)" has again -c 'read -P 0x5a 12345 70000'
    stop_server
done
check "sector 0 to the first partition were not written" cmp -n 1048576 "$DISK" "$DIR/model-whole"

# A file system in a partition, through two clients, is one in the image.
mkfs.ext4 -q -F "$DIR/fs.img" 32M >/dev/null 2>&1 && mkdir -p "$DIR/tree" && date >"$DIR/tree/date"
mkfs.ext4 -q -F -b 1024 -d "$DIR/tree" "$DIR/fs.img" 32766k >/dev/null 2>&1
truncate -s 33553920 "$DIR/fs.img"
CACHE=16M serve "p1=file:path=$DISK,partition=1" "p2=file:path=$DISK,partition=2"
check "nbdcopy writes a file system into a partition" nbdcopy --flush "$DIR/fs.img" "$(at p2)"
check "qemu-img compares them" qemu-img compare -U -f raw -F raw "$DIR/fs.img" "$(at p2)"
check "and converts it" qemu-img convert -U -f raw -O raw "$(at p2)" "$DIR/converted.img"
check "fsck finds it whole" e2fsck -fn "$DIR/converted.img"
stop_server
# shellcheck disable=SC2086
bytes_of "$DISK" $SECOND >"$DIR/partition.img"
check "fsck finds it in the image" e2fsck -fn "$DIR/partition.img"
check "byte by byte" cmp "$DIR/partition.img" "$DIR/fs.img"
check "sfdisk finds the table that it made" bash -c 'diff <(sfdisk -d "$1" | tail -n 3) <(sfdisk -d "$2" | tail -n 3 | sed "s|$2|$1|")' - "$DISK" "$DIR/before.img"

# The table that counts is the one inside of an image of a format, and of an overlay.
qemu-img convert -f raw -O qcow2 "$DISK" "$IMAGES/disk.qcow2"
"$HEADWORKS" image create --base "$DISK" "$IMAGES/over.hwo" >/dev/null
CACHE=16M serve --control "$CONTROL" "q=qcow2:path=$IMAGES/disk.qcow2,partition=2" "over=overlay:path=$IMAGES/over.hwo"
# shellcheck disable=SC2086
check "a partition in a qcow2 image" is_copied q "$DISK" $SECOND
check "a new table with logical partitions goes to the overlay" bash -c '
    truncate -s 64M "$1/mbr.img"
    printf "label: dos\nstart=2048, size=2048\nstart=8192, size=65536, type=f\nstart=10240, size=4096\nstart=16384, size=8192\n" | sfdisk -q "$1/mbr.img"
    qemu-img convert -n -f raw -O raw "$1/mbr.img" "$2"' - "$DIR" "$(at over)"
check "a logical partition of it is served" ctl add "l6=overlay:path=$IMAGES/over.hwo,partition=6"
check "with its size" size_is l6 4194304
check "the extended one is not" fails 1 'has an extended partition 2, which only holds others; there are 1 \(1 MiB\), 5 \(2 MiB\), 6 \(4 MiB\)' \
    add "l2=overlay:path=$IMAGES/over.hwo,partition=2"
check "it is written" on l6 -c 'write -P 0x66 0 4194304' -c flush
check "at its place" has over -c "read -P 0x66 $((16384 * 512)) 4194304"
stop_server
# shellcheck disable=SC2086
check "the base is as it was" bash -c 'dd if="$1" bs=512 skip=34817 count=65535 status=none | cmp - "$2"' - "$DISK" "$DIR/fs.img"

# A remote that permits one client at a time, which is its default.
qemu-nbd -t -f raw -k "$DIR/remote.sock" "$DISK" &
REMOTE=$!
wait_until 20 test -S "$DIR/remote.sock"
CACHE=16M serve "whole=nbd:uri=nbd+unix:///?socket=$DIR/remote.sock" "p2=nbd:uri=nbd+unix:///?socket=$DIR/remote.sock,partition=2"
# shellcheck disable=SC2086
check "a partition of a remote" is_copied p2 "$DISK" $SECOND
stop_server
kill $REMOTE
wait $REMOTE 2>/dev/null

# Sizes that change, a configuration that changes.
cat >"$DIR/parts.toml" <<END
[server]
control = "$CONTROL"
cache = "16M"
[[export]]
name = "rest"
file = { path = "$DISK" }
offset = "1M"
[[export]]
name = "first"
file = { path = "$DISK" }
partition = 1
END
check "a configuration is checked with its parts" bash -c '"$1" check "$2" | grep -q "export: first: .*, partition 1, 16 MiB"' - "$HEADWORKS" "$DIR/parts.toml"
serve_at -U "$SOCKET" --config "$DIR/parts.toml"
check "a part grows by so much" ctl resize rest +1M
check "with its image" test "$(stat -c %s "$DISK")" = $((65 << 20))
check "and is told" size_is rest $((64 << 20))
check "a partition keeps its length" size_is first 16777216
check "and says why" fails 1 'is a part of its image with a length of its own' resize first 32M
sed -i 's/partition = 1/partition = 2/' "$DIR/parts.toml"
check "a reload says that another partition needs a restart" says_like 'export first not changed: partition changed; restart the server, or remove and add the export' reload
check "and serves what it served" size_is first 16777216
check "diff says what a restart takes over" says_like 'exports/first/partition: 1, configured 2' diff
check "and save that the configuration has it already" says_like 'export first: partition is configured already; a restart takes it over' save
stop_server

# What a killed server had acknowledged of a part, and clients that go on with another process.
if [ -w /dev/shm ]; then
    KEPT=$(mktemp -d /dev/shm/headworks-parts.XXXXXX)
    CACHE=16M serve --cache-file "$KEPT/cache" "p2=file:path=$DISK,partition=2"
    script parts.py unflushed "$SOCKET" p2
    kill -9 "$SERVER"
    wait "$SERVER" 2>/dev/null
    SERVER=0
    CACHE=16M serve --cache-file "$KEPT/cache" "odd=file:path=$DISK,offset=63s" "p2=file:path=$DISK,partition=2"
    check "the next one brings it back" grep -hq 'restored .* of acknowledged writes after the server was killed' "$OUT" "$LOG"
    check "to its place" has p2 -c 'read -P 0x77 5000 300000'
    check "whatever part of the image is served" has odd -c "read -P 0x77 $((34817 * 512 + 5000 - 63 * 512)) 300000"
    stop_server
    rm -rf "$KEPT"
else
    skip "what a killed server left" "no memory filesystem"
fi
memory=$(mktemp -d /dev/shm/hw-parts.XXXXXX) || exit 1
trap 'rm -rf "$memory"' EXIT
chmod 700 "$memory"
export HW_SERVER=$HEADWORKS HW_ENGINE=$ENGINE HW_MEMORY=$memory HW_DIR=$DIR HW_IMAGES=$IMAGES
script parts.py upgrade "$DISK"

# The table that counts is the one that a killed server had acknowledged.
CACHE=16M serve --cache-file "$memory/cache" "whole=file:path=$DISK"
script parts.py table "$SOCKET" whole "$DIR/mbr.img"
kill -9 "$SERVER"
wait "$SERVER" 2>/dev/null
SERVER=0
check "the table is not in the image" test "$(sfdisk -d "$DISK" 2>/dev/null | grep -c 'label: gpt')" = 1
CACHE=16M serve --cache-file "$memory/cache" "p1=file:path=$DISK,partition=1" "whole=file:path=$DISK"
check "a partition of it is served" size_is p1 1048576
stop_server

# A partition that comes later.
cat >"$DIR/late.toml" <<END
[server]
control = "$CONTROL"
cache = "16M"
[[export]]
name = "whole"
file = { path = "$DISK" }
[[export]]
name = "l6"
file = { path = "$DISK" }
partition = 6
END
serve_at -U "$SOCKET" --config "$DIR/late.toml"
check "a missing partition is absent" says_like '^l6: .*disk.img has no partition 6; there are' exports
check "its table is written by a client" qemu-img convert -n -f raw -O raw "$DIR/mbr.img" "$(at whole)"
check "a reload serves it" says_like 'export l6 added' reload
check "as the client wrote it" size_is l6 4194304
stop_server
