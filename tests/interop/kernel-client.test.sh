#!/usr/bin/env bash
# matrix: once
# The kernel's own NBD client: a user-mode Linux with the server inside, ext4 on what it serves, and the host looks at the image.
. "$(dirname "$0")/lib.sh"

FOLDER=$DIR/host
TREE=$DIR/tree
mkdir -p "$FOLDER" "$DIR/guest" "$TREE"

without() { # REASON
    skip "the kernel as a client" "$1"
    exit 0
}
export PATH=$PATH:/usr/sbin:/sbin
for program in linux.uml nbd-client mkfs.ext4 debugfs cc; do
    command -v $program >/dev/null || without "$program is not installed"
done

# A tree of many small files and two large ones, the same every time.
cp -r "$HERE" "$TREE/scripts"
mkdir -p "$TREE/small"
"$PYTHON" - "$TREE/small" <<'PY'
import random, sys
draw = random.Random(6)
for number in range(200):
    with open(f"{sys.argv[1]}/{number}", "wb") as file:
        file.write(draw.randbytes(draw.choice([0, 1, 100, 4095, 4096, 4097, 30000])))
PY
pseudo_random 8 large >"$TREE/large"
pseudo_random 4 holes >"$TREE/holes"
truncate -s 12M "$TREE/holes"

cc -O1 -shared -fPIC -o "$FOLDER/xstate.so" "$HERE/uml/xstate.c" || exit 1
# The guest is a kernel of its own: it has io_uring, whatever the host allows.
cat >"$FOLDER/env" <<ENV
export HEADWORKS=$(realpath "$HEADWORKS") ENGINE=uring BACKEND=file CACHE=0 DIR=$DIR/guest IMAGES=$IMAGES PYTHON=$PYTHON
export FOLDER=$FOLDER TREE=$TREE CHECKS=$HERE/uml/checks.sh
ENV

# TMPDIR: where the guest's memory is; /dev/shm may be too small.
TMPDIR=$FOLDER LD_PRELOAD=$FOLDER/xstate.so timeout --kill-after=5 250 linux.uml mem=192M rootfstype=hostfs rootflags=/ rw \
    init="$(realpath "$HERE/uml/init.sh")" FOLDER="$FOLDER" con=null con0=null,fd:1 </dev/null >"$FOLDER/console" 2>&1
tr -d '\r' <"$FOLDER/console" >"$FOLDER/console.text"
if [ ! -s "$FOLDER/checks" ]; then
    without "user-mode Linux does not start here: $(grep -v '^ *$' "$FOLDER/console.text" | grep -iE 'ptrace|error|fail|panic|denied' | head -n 1)"
fi
grep -q '^exit 0$' "$FOLDER/checks" || { BAD=1; tail -n 40 "$FOLDER/console.text" | quote; }
cat "$FOLDER/checks"
check "the guest ran to its end" grep -q '^exit' "$FOLDER/checks"

# Without the guest, and without the server.
check "the image has no fault" e2fsck -fn "$IMAGES/kernel.img"
mkdir "$DIR/dump"
check "its tree is readable" debugfs -R "rdump /tree $DIR/dump" "$IMAGES/kernel.img"
check "and the one that was copied" diff -r "$TREE" "$DIR/dump/tree"
