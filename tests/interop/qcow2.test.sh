#!/usr/bin/env bash
# matrix: either
# seconds: 7
# qcow2 and flat VMDK images: contents and block status as qemu-img sees them, and what is refused.
. "$(dirname "$0")/lib.sh"

script qcow2.py make "$IMAGES" "$DIR/exports"
mapfile -t exports <"$DIR/exports"
check "there are images" test ${#exports[@]} -ge 20
serve --control "$CONTROL" "${exports[@]}"
script qcow2.py compare "$IMAGES" "$SOCKET" "$DIR/exports"
check "an image is read-only" bash -c '! qemu-io -f raw -c "write 0 512" "$1" 2>/dev/null' - "$(at plain-64k)"
check "nbdinfo says so" bash -c '[ "$(nbdinfo --json "$1" | python3 -c "import json, sys; print(json.load(sys.stdin)[\"exports\"][0][\"is_read_only\"])")" = True ]' - "$(at plain-64k)"
check "the start says so" grep -q '^note: .*plain-64k.qcow2 is served read-only' "$OUT" "$LOG"
check "and how it is read" grep -Eq 'middle.qcow2 \(qcow2, with 1 other file, [0-9]+ fragments, ' "$OUT" "$LOG"
check "qemu cannot write it meanwhile" bash -c '! qemu-io -f qcow2 -c "write 0 512" "$1" 2>/dev/null' - "$IMAGES/plain-64k.qcow2"
check "nor its backing file" bash -c '! qemu-io -f raw -c "write 0 512" "$1" 2>/dev/null' - "$IMAGES/base.raw"
check "a second export of an image shares its volume" ctl add "again=qcow2:path=$IMAGES/plain-64k.qcow2"
check "not with other options" fails 1 'differs from another export of the same image' add "other=qcow2:path=$IMAGES/plain-64k.qcow2,direct=off"
check "nor as its bytes" fails 1 'differs from another export of the same image' add "other=file:path=$IMAGES/plain-64k.qcow2,format=raw"
check "both are removed" bash -c '"$1" ctl "$2" remove again && "$1" ctl "$2" remove plain-64k' - "$HEADWORKS" "$CONTROL"
check "its file is free" qemu-io -f qcow2 -c "write 0 512" "$IMAGES/plain-64k.qcow2"
check "and served anew" ctl add "plain-64k=qcow2:path=$IMAGES/plain-64k.qcow2"
check "an image is not grown" fails 1 '.' resize plain-64k 1G
stop_server

# Through a page cache, the same bytes.
CACHE=64M serve "${exports[@]:0:12}"
head -n 12 "$DIR/exports" >"$DIR/some"
script qcow2.py compare "$IMAGES" "$SOCKET" "$DIR/some"
stop_server

refused() { # PATTERN SPEC
    local output
    output=$("$HEADWORKS" serve --engine "$ENGINE" --run true "$2" 2>&1) && { echo "not refused: $output"; return 1; }
    echo "said: $output"
    [ "$(grep -c '' <<<"$output")" -eq 1 ] && grep -Eq -- "$1" <<<"$output"
}
script qcow2.py hostile "$IMAGES"
for case in \
    'extended:has extended L2 entries, which are not read; make a copy.*qemu-img convert' \
    'zstd:is compressed by zstd, and zlib alone is read; .*qemu-img convert' \
    'luks:is an encrypted qcow2 image, which is not read; .*qemu-img convert' \
    'dirty:is marked as dirty.* qemu-img check -r all' \
    'truncated:is truncated' \
    'shadow:names the backing file /etc/passwd, which is not beside it; backing=allow' \
    'above:names the backing file .*/above.raw, which is not beside it' \
    'link:names the backing file /etc/passwd, which is not beside it' \
    'data:names the data file /etc/passwd, which is not beside it' \
    'missing:needs its backing file .*/nowhere.raw: No such file' \
    'json:has a backing file .* that is no path' \
    'unsaid:does not say the format of its backing file' \
    'loop:is its own backing file' \
    'deep:is image 9 of a chain, and 8 are read'; do
    check "refused: ${case%%:*}" refused "${case#*:}" "qcow2:path=$IMAGES/hostile/${case%%:*}.qcow2"
done
check "any backing file if it is allowed" "$HEADWORKS" serve --engine "$ENGINE" --run true "qcow2:path=$IMAGES/hostile/above.qcow2,backing=allow"
for format in monolithicSparse streamOptimized; do
    check "refused: VMDK $format" refused 'is a sparse VMDK image.*qemu-img convert' "vmdk:path=$IMAGES/hostile/$format.vmdk"
done
check "refused: no image" refused 'is no qcow2 image' "qcow2:path=$IMAGES/base.raw"

# A file that begins like an image is not served as its bytes, unless that is said.
foreign=$IMAGES/hostile/foreign.qcow2
check "refused: a qcow2 image as a path" refused 'begins like a qcow2 image: qcow2:path=.*format=raw.*qemu-img convert -O raw' "$foreign"
check "refused: a VHDX image" refused 'begins like a VHDX image: it is not read here' "$IMAGES/hostile/foreign.vhdx"
serve --control "$CONTROL" "raw=file:path=$foreign,format=raw" "bad=$foreign" "good=mem:size=1M"
check "its bytes are served by name" bash -c 'nbdcopy "$1" - | cmp - "$2"' - "$(at raw)" "$foreign"
check "beside it the same path is refused alone" says_like '^bad: its image .* begins like a qcow2 image' exports
check "and the others are served" qemu-io -f raw -c "read 0 1M" "$(at good)"
check "refused: added as a path" fails 1 'begins like a qcow2 image' add "more=$IMAGES/plain-64k.qcow2"
stop_server

# A guest makes its raw disk look like an image; what is served goes on.
truncate -s 8M "$IMAGES/disk.img"
printf '[server]\nunix = "%s"\ncontrol = "%s"\n[[export]]\nname = "disk"\nfile = { path = "%s" }\n[[export]]\nname = "mixed"\nqcow2 = { path = "%s" }\n' \
    "$SOCKET" "$CONTROL" "$IMAGES/disk.img" "$IMAGES/mixed.qcow2" >"$DIR/main.toml"
CACHE=16M serve_at --config "$DIR/main.toml"
qemu-img create -q -f qcow2 "$(at disk)" 4M
check "an image is served beside it" qemu-img compare -q -U -f qcow2 -F raw "$IMAGES/mixed.qcow2" "$(at mixed)"
reload_keeps() {
    ctl reload | tee "$DIR/reload" && ! grep "begins like" "$DIR/reload"
}
check "a reload keeps it" reload_keeps
check "its state says nothing" says_like '^disk +8 MiB .* serving$' exports
before=$SERVER
check "an upgrade keeps it" ctl upgrade
SERVER=$(sed -n 's/.* upgraded: process \([0-9]*\) serves now.*/\1/p' "$LOG")
check "another process serves it" test -n "$SERVER" -a "$SERVER" != "$before"
check "as the same disk" qemu-img check -q -f qcow2 "$(at disk)"
check "and an image beside it" qemu-img compare -q -U -f qcow2 -F raw "$IMAGES/mixed.qcow2" "$(at mixed)"
kill_server() { kill -9 "$SERVER" && wait_until 20 is_gone "$SERVER"; }
check "it is killed" kill_server
SERVER=0
sed -i 's/^name = "disk"$/&\non-unclean = "serve"/' "$DIR/main.toml"
CACHE=16M serve_at --config "$DIR/main.toml"
check "and served again after that" qemu-img check -q -f qcow2 "$(at disk)"
stop_server
check "a start after a clean stop asks what is meant" refused 'begins like a qcow2 image' "$IMAGES/disk.img"
CACHE=16M serve "disk=file:path=$IMAGES/disk.img,format=raw"
check "and is told" qemu-img check -q -f qcow2 "$(at disk)"
stop_server
