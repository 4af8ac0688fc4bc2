#!/usr/bin/env bash
# matrix: once
# lock: uml
# seconds: 27
# The kernel's own NBD client: a user-mode Linux with the server inside, ext4 on what it serves, and the host looks at the image.
. "$(dirname "$0")/lib.sh"

. "$HERE/uml/boot.sh"

TREE=$DIR/tree
mkdir -p "$TREE"

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

run_guest "$HERE/uml/checks.sh" 250 "TREE=$TREE"
