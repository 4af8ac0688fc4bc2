#!/usr/bin/env bash
# matrix: either
# Overlays whose base is a remote (`--base nbd:uri=...`): foreign servers behind, one that is killed, one that changed.
. "$(dirname "$0")/lib.sh"

image() { "$HEADWORKS" image "$@"; }
GOLDEN=$DIR/golden.img BEHIND=$DIR/golden.sock BEHIND_PID=0
REMOTE="nbd:uri=nbd+unix:///?socket=$BEHIND,connections=1"
behind() { # starts the server of the base
    rm -f "$BEHIND"
    qemu-nbd -r -f raw -t -e 100 -k "$BEHIND" "$GOLDEN" >"$DIR/behind.log" 2>&1 &
    BEHIND_PID=$!
    wait_until 20 test -S "$BEHIND"
}
end_behind() { kill -9 "$BEHIND_PID" && wait "$BEHIND_PID" 2>/dev/null; }
trap 'kill -9 "$BEHIND_PID" 2>/dev/null; cleanup' EXIT

pseudo_random 16 1 >"$GOLDEN"
check "refused: no server is there" refuses 'cannot connect' image create --base "$REMOTE" "$IMAGES/none.hwo"
behind
check "qemu-nbd serves the base" test -S "$BEHIND"
check "refused: the head of a cluster's image" refuses 'name a snapshot' image create --base rbd:image=rbd/vol "$IMAGES/none.hwo"
check "refused: a base with wrappers" refuses 'not a directory|No such file' image create --base "delay:read=1ms,of=$REMOTE" "$IMAGES/none.hwo"
check "no file is left" test ! -e "$IMAGES/none.hwo"
for name in a b c d e; do
    check "an overlay on a remote is made: $name" image create --base "$REMOTE" "$IMAGES/$name.hwo"
done
check "one larger than its base" image create --base "$REMOTE" --size 20M "$IMAGES/large.hwo"
check "refused: remotes are connected to on request only" refuses 'backing=allow' "$HEADWORKS" serve "overlay:path=$IMAGES/a.hwo"
check "refused: in the tool, too" refuses 'backing=allow' image info "$IMAGES/a.hwo"
check "refused: a commit into it" refuses 'not written.*flatten' image commit --backing allow "$IMAGES/a.hwo"
check "its layers are shown" sh -c '"$1" image info --backing allow "$2" | grep -q "^nbd:uri="' - "$HEADWORKS" "$IMAGES/a.hwo"

exports=()
for name in a b c d e large; do exports+=("$name=overlay:path=$IMAGES/$name.hwo,backing=allow"); done
CACHE=64M serve --control "$CONTROL" "${exports[@]}"
for name in a b c d e; do
    check "$name reads as its base" sh -c 'nbdcopy "$1" - | cmp - "$2"' - "$(at $name)" "$GOLDEN"
done
sectors() { ctl diskstats | awk '{ sum += $6 } END { print sum }'; }
check "five overlays read the base once: $(sectors) sectors of 32768" test "$(sectors)" -le 34000
check "and their own blocks are their own" qemu-io -f raw -c 'write -P 7 1M 100k' -c 'write -z 3M 64k' -c flush -c 'read -P 7 1M 100k' -c 'read -P 0 3M 64k' "$(at a)"
check "others have the base's there" sh -c 'nbdcopy "$1" - | cmp - "$2"' - "$(at b)" "$GOLDEN"
check "behind the base are zeros" qemu-io -f raw -c 'read -P 0 16M 4M' "$(at large)"
check "a state is kept" ctl snapshot a a-kept.hwo
check "and written over" qemu-io -f raw -c 'write -P 8 1M 4k' -c 'read -P 8 1M 4k' -c 'read -P 7 1028k 96k' "$(at a)"
check "an upgrade" ctl upgrade
SERVER=$(sed -n 's/.* upgraded: process \([0-9]*\) serves now.*/\1/p' "$LOG")
check "has the same" qemu-io -f raw -c 'read -P 8 1M 4k' -c 'read -P 7 1028k 96k' "$(at a)"
check "another is removed and added" sh -c '"$1" ctl "$2" remove b && "$1" ctl "$2" add "$3"' - "$HEADWORKS" "$CONTROL" "b=overlay:path=$IMAGES/b.hwo,backing=allow"
check "and reads as its base" sh -c 'nbdcopy "$1" - | cmp - "$2"' - "$(at b)" "$GOLDEN"
check "a copy of all" nbdcopy "$(at a)" "$DIR/all"
stop_with TERM
no_panic

# What is not cached waits for a server that comes back.
CACHE=0 serve "${exports[@]}"
end_behind
qemu-io -r -f raw -c 'read 5M 1M' "$(at c)" >"$DIR/waits" &
reader=$!
behind
check "the base's server was killed and is back" test -S "$BEHIND"
wait $reader
check "a read meanwhile is answered" test $? -eq 0
check "with no error" grep -q '1 ops' "$DIR/waits"
check "all is as it was" sh -c 'nbdcopy "$1" - | cmp - "$2"' - "$(at c)" "$GOLDEN"
stop_server

rm -f "$DIR/flat.img"
check "flat it is what was served" sh -c '"$1" image flatten --backing allow "$2" "$3/flat.img" && cmp "$3/flat.img" "$3/all"' - "$HEADWORKS" "$IMAGES/a.hwo" "$DIR"
cp "$GOLDEN" "$IMAGES/local.img"
check "it is put on a copy of the base" image rebase --base "$IMAGES/local.img" "$IMAGES/a-kept.hwo"
check "and what is on it on that" image rebase --base "$IMAGES/a-kept.hwo" "$IMAGES/a.hwo"
rm -f "$DIR/flat.img"
check "and reads the same" sh -c '"$1" image flatten "$2" "$3/flat.img" && cmp "$3/flat.img" "$3/all"' - "$HEADWORKS" "$IMAGES/a.hwo" "$DIR"
end_behind
truncate -s 17M "$GOLDEN"
behind
check "refused: a base of another size" refuses 'has another size' "$HEADWORKS" serve "overlay:path=$IMAGES/b.hwo,backing=allow"

# A server whose remotes are away serves what else it has; a reload brings them when they are back.
end_behind
truncate -s 1M "$IMAGES/plain.img"
printf '[[export]]\nname = "plain"\nfile = { path = "%s" }\n' "$IMAGES/plain.img" >"$DIR/main.toml"
printf '[[export]]\nname = "c"\noverlay = { path = "%s", backing = "allow" }\n' "$IMAGES/c.hwo" >>"$DIR/main.toml"
printf '[[export]]\nname = "far"\nnbd = { uri = "nbd+unix:///?socket=%s", read-only = true }\n' "$BEHIND" >>"$DIR/main.toml"
CACHE=16M serve --control "$CONTROL" --config "$DIR/main.toml"
check "the file is served" qemu-io -f raw -c 'write -P 1 0 64k' -c flush "$(at plain)"
check "the overlay is absent, and says why" says_like '^c .* (missing|absent)' exports
check "and so is the remote" says_like '^far .* (missing|absent)' exports
truncate -s 16M "$GOLDEN"
behind
check "a reload serves them" ctl reload
check "the overlay reads as its base" sh -c 'nbdcopy "$1" - | cmp - "$2"' - "$(at c)" "$GOLDEN"
check "and the remote" sh -c 'nbdcopy "$1" - | cmp - "$2"' - "$(at far)" "$GOLDEN"
stop_server
