#!/usr/bin/env bash
# matrix: either
# seconds: 21
# Overlays: foreign clients, kill -9 of the server and of a commit, a base that was changed, a full disk.
. "$(dirname "$0")/lib.sh"

BASE=$IMAGES/golden.img TENANT=$IMAGES/tenant.hwo
image() { "$HEADWORKS" image "$@"; }
flat_is() { # EXPECTED OVERLAY
    rm -f "$DIR/flat.img"
    image flatten "$2" "$DIR/flat.img" && cmp "$1" "$DIR/flat.img"
}

pseudo_random 16 1 >"$BASE"
cp -p "$BASE" "$DIR/base.copy"
check "an overlay is made" image create --base "$BASE" "$TENANT"
check "and checked" image check "$TENANT"
check "it takes no place yet" test "$(du -k "$TENANT" | cut -f1)" -le 64
check "its name is not taken twice" refuses 'exists already' image create --base "$BASE" "$TENANT"
check "serve --config can be checked" sh -c 'printf "[[export]]\nname = \"t\"\noverlay = { path = \"%s\" }\n" "$1" >"$2/c.toml" && "$3" check "$2/c.toml" | tee /dev/stderr | grep -q "export: t: .*tenant.hwo, 16 MiB"' - "$TENANT" "$DIR" "$HEADWORKS"
check "as a raw image it is refused" refuses 'overlay:path=.* serves what is in it' "$HEADWORKS" serve "$TENANT"

# Foreign clients.
for CACHE in 0 16M; do
    rm -f "$TENANT"
    image create --base "$BASE" "$TENANT" >/dev/null
    serve --control "$CONTROL" "t=overlay:path=$TENANT"
    check "cache $CACHE: it reads as its base" sh -c 'nbdcopy "$1" - | cmp - "$2"' - "$(at t)" "$BASE"
    check "cache $CACHE: the base cannot be written meanwhile" refuses 'in use' "$HEADWORKS" serve "$BASE"
    check "cache $CACHE: a second server is refused" refuses 'in use' "$HEADWORKS" serve "overlay:path=$TENANT"
    pseudo_random 4 2 >"$DIR/part"
    check "cache $CACHE: qemu-io writes, zeroes, discards" qemu-io -f raw -c 'write -P 7 1M 64k' -c 'write -z 2M 128k' \
        -c 'discard 3M 1M' -c 'write -P 9 1234432 512' -c flush "$(at t)"
    check "cache $CACHE: qemu-io reads them" qemu-io -r -f raw -c 'read -P 7 1M 64k' -c 'read -P 0 2M 128k' \
        -c 'read -P 9 1234432 512' "$(at t)"
    check "cache $CACHE: nbdcopy fills a part" nbdcopy "$DIR/part" -- [ qemu-nbd -f raw "json:{\"driver\":\"raw\",\"offset\":8388608,\"size\":4194304,\"file\":{\"driver\":\"nbd\",\"export\":\"t\",\"server\":{\"type\":\"unix\",\"path\":\"$SOCKET\"}}}" ]
    check "cache $CACHE: its size stays" fails 1 'whose size does not change' resize t 1G
    check "cache $CACHE: a copy of all" nbdcopy "$(at t)" "$DIR/all"
    check "cache $CACHE: the part is in it" cmp -n 4194304 -i 8388608:0 "$DIR/all" "$DIR/part"
    stop_server
    check "cache $CACHE: the base is as it was" cmp "$BASE" "$DIR/base.copy"
    check "cache $CACHE: flat it is what was served" flat_is "$DIR/all" "$TENANT"
done
CACHE=0

# A commit that is killed changes no contents, and can be begun again.
killed=0
for limit in 0.002 0.004 0.006 0.008 0.010 0.012 0.016 0.020 0.030 60; do
    (timeout -s KILL "$limit" "$HEADWORKS" image commit "$TENANT" || exit 1) >/dev/null 2>&1 && break
    killed=$((killed + 1))
    flat_is "$DIR/all" "$TENANT" >/dev/null || { say "not ok" "contents after a commit that was killed after $limit s"; break; }
done
check "a commit that was killed $killed times ends" test "$limit" = 60 -o $killed -gt 0
check "the base has all then" cmp "$BASE" "$DIR/all"
check "and the overlay nothing" sh -c '"$1" image info --json "$2" | grep -q "\"own_bytes\": 0"' - "$HEADWORKS" "$TENANT"

# A changed base.
touch "$BASE"
check "a base that was modified is refused" refuses 'was modified since' "$HEADWORKS" serve "overlay:path=$TENANT"
check "check says so, too" refuses 'was modified since' image check "$TENANT"
check "rebase takes it" image rebase --base "$BASE" "$TENANT"
check "and all is well" image check "$TENANT"
mkdir -p "$IMAGES/elsewhere"
mv "$TENANT" "$IMAGES/elsewhere/"
check "a base that is not there is refused" refuses 'cannot be opened' image info "$IMAGES/elsewhere/tenant.hwo"
check "rebase finds it" image rebase --base "$BASE" "$IMAGES/elsewhere/tenant.hwo"
check "a base elsewhere needs a word" refuses 'backing=allow' "$HEADWORKS" serve "overlay:path=$IMAGES/elsewhere/tenant.hwo"
check "with it it is found" image check --backing allow "$IMAGES/elsewhere/tenant.hwo"
rm -rf "$IMAGES/elsewhere"

# A golden image of another format: compressed, on a backing file.
qemu-img create -q -f qcow2 -F raw -b "$BASE" "$IMAGES/middle.qcow2" >/dev/null
qemu-io -f qcow2 -c 'write -P 5 1M 1M' "$IMAGES/middle.qcow2" >/dev/null
qemu-img convert -q -c -O qcow2 -B "$BASE" -F raw "$IMAGES/middle.qcow2" "$IMAGES/golden.qcow2"
VM=$IMAGES/vm.hwo
check "a qcow2 image is no base without a word" refuses '--base-format qcow2 takes' image create --base "$IMAGES/golden.qcow2" "$VM"
check "with it it is" image create --base "$IMAGES/golden.qcow2" --base-format qcow2 "$VM"
serve --control "$CONTROL" "vm=overlay:path=$VM"
check "it reads as the image does" qemu-img compare -f raw -F qcow2 "$(at vm)" "$IMAGES/golden.qcow2"
check "and is written" qemu-io -f raw -c 'write -P 6 1536k 4k' -c flush -c 'read -P 5 1M 512k' -c 'read -P 6 1536k 4k' "$(at vm)"
kill -9 "$SERVER"
wait "$SERVER" 2>/dev/null
SERVER=0
image flatten "$VM" "$DIR/vm.img" >/dev/null
check "flat it has both" qemu-io -r -f raw -c 'read -P 5 1M 512k' -c 'read -P 6 1536k 4k' -c 'read -P 5 1540k 508k' "$DIR/vm.img"
check "it is not committed" refuses 'which is not written' image commit "$VM"
rm -f "$IMAGES/middle.qcow2" "$IMAGES/golden.qcow2" "$VM"

# Killed servers under a client that flushes now and then.
script overlay.py kill "$HEADWORKS" "$ENGINE" "$SOCKET" "$BASE" "$IMAGES/kill.hwo" "$DIR"

# Clients that outlive a killed server, in each cache mode.
memory=$(mktemp -d /dev/shm/hw-overlay.XXXXXX) || exit 1
script overlay.py reconnect "$HEADWORKS" "$ENGINE" "$SOCKET" "$BASE" "$IMAGES" "$memory"
rm -rf "$memory"

# A hundred tenants on one base, and a plain file: one device, more images than there are devices.
COUNT=100 exports=("plain=file:path=$IMAGES/plain.img,size=1M")
for ((number = 1; number <= COUNT; number++)); do
    image create --base "$BASE" "$IMAGES/t$number.hwo" >/dev/null
    exports+=("t$number=overlay:path=$IMAGES/t$number.hwo")
done
serve --control "$CONTROL" --shards 2 "${exports[@]}"
check "$COUNT overlays and a file have one device" sh -c '[ "$("$1" ctl "$2" diskstats | wc -l)" -eq 1 ]' - "$HEADWORKS" "$CONTROL"
script overlay.py many "$(at t1)" "$CONTROL" "$BASE" "$IMAGES" $COUNT
check "a snapshot of one of them" ctl snapshot t3 t3-kept.hwo
check "the file is read beside them" qemu-io -f raw -c 'write -P 3 0 64k' -c flush -c 'read -P 3 0 64k' "$(at plain)"
kill -9 "$SERVER"
wait "$SERVER" 2>/dev/null
SERVER=0
rm -f "$SOCKET"
serve --control "$CONTROL" "${exports[@]}"
script overlay.py again "$(at t1)" "$BASE" $COUNT
stop_server
rm -f "$IMAGES"/t[0-9]*.hwo

# Snapshots while clients write; with a page cache, too.
truncate -s 1M "$IMAGES/mixed.img"
tail -c 15M "$DIR/base.copy" >>"$IMAGES/mixed.img"
for CACHE in 0 16M; do
    rm -f "$IMAGES"/monday-*.hwo "$TENANT"
    image create --base "$IMAGES/mixed.img" "$TENANT" >/dev/null
    printf '[[export]]\nname = "%s"\n%s\n' x "file = { path = \"$IMAGES/x.img\", size = \"1M\" }" t "overlay = { path = \"$TENANT\" }" >"$DIR/layers.toml"
    serve --control "$CONTROL" --shards 2 --config "$DIR/layers.toml"
    script overlay.py snapshot "$HEADWORKS" "$CONTROL" "$(at t)" "$TENANT" "$DIR"
    check "cache $CACHE: a layer that is kept is not written" refuses 'in use' "$HEADWORKS" serve "overlay:path=$IMAGES/monday-1.hwo"
    check "cache $CACHE: but read by others" "$HEADWORKS" serve --read-only "overlay:path=$IMAGES/monday-1.hwo" --run 'nbdinfo --size $uri'
    check "cache $CACHE: a name is not taken twice" fails 1 'exists already' snapshot t monday-1.hwo
    check "cache $CACHE: layers are together" fails 1 'backing=allow' snapshot t ../monday.hwo
    check "cache $CACHE: an image has no layers" fails 1 'is no overlay' snapshot x y
    check "cache $CACHE: a reload finds the same" says_like '^nothing changed$' reload
    check "cache $CACHE: more snapshots" sh -c 'for i in 5 6; do "$1" ctl "$2" snapshot t monday-$i.hwo || exit; done' - "$HEADWORKS" "$CONTROL"
    check "cache $CACHE: eight layers are the most" fails 1 'highest of 8 overlays' snapshot t monday-7.hwo
    nbdcopy "$(at t)" "$DIR/all"
    stop_server
    check "cache $CACHE: flat it is what was served" flat_is "$DIR/all" "$TENANT"
    check "cache $CACHE: no file is left over" sh -c '! ls "$1"/*.new-*' - "$IMAGES"
done
CACHE=0

# A disk without room.
SMALL=$DIR/small
mkdir -p "$SMALL"
if ! reason=$(mount -t tmpfs -o size=8m small "$SMALL" 2>&1); then
    skip "an overlay on a full disk" "a small filesystem cannot be mounted: $reason"
    exit 0
fi
trap '[ "$SERVER" -eq 0 ] || kill -9 "$SERVER"; umount -l "$SMALL"; [ $BAD -eq 0 ] || exit 1' EXIT
truncate -s 64M "$IMAGES/zeros.img"
for mode in none writeback; do
    rm -f "$SMALL"/* "$IMAGES/b.img"
    image create --base "$IMAGES/zeros.img" "$SMALL/a.hwo" >/dev/null
    dd if=/dev/zero of="$SMALL/filler" bs=1M count=4 status=none
    CACHE=0
    [ $mode = none ] || CACHE=16M
    serve --control "$CONTROL" "a=overlay:path=$SMALL/a.hwo,backing=allow" "b=file:path=$IMAGES/b.img,size=16M"
    script overlay.py full "$(at a)" "$SMALL/filler"
    stop_server
done
