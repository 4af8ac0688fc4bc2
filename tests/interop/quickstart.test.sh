#!/usr/bin/env bash
# matrix: once
# alone
# seconds: 15
# docs/guide/quickstart.md: from the program to a verified disk and to the tenant that makes another one slow, in ten commands, as the page has
# them. `scripts/packages-test` runs the same from the package.
. "$(dirname "$0")/lib.sh"

page=$(cd "$HERE/../../docs/guide" && pwd)/quickstart.md
check "the path has at most ten commands" test "$(grep -c '^```sh' "$page")" -le 10
if ! fio --enghelp 2>/dev/null | grep -q '\<nbd\>'; then
    skip "the path of a stranger" "fio has no engine nbd"
    exit 0
fi
# What the package would install is here.
shims=$DIR/shims
mkdir -p "$shims" "$IMAGES/quickstart" && cd "$IMAGES/quickstart" || exit 1
printf '#!/bin/sh\nexec "$@"\n' >"$shims/sudo"
printf '#!/bin/sh\n' >"$shims/apt-get"
ln -s "$HEADWORKS" "$shims/headworks"
chmod +x "$shims"/*
"$PYTHON" "$HERE/tutorial.py" "$page" "$shims"
ended() { # a step that failed has left the server
    local pid
    pid=$(cat hw.pid 2>/dev/null) || return 0
    kill "$pid" 2>/dev/null
    wait_until 10 bash -c '! kill -0 "$1" 2>/dev/null' - "$pid"
}
check "the server has ended" ended
rm -rf "$IMAGES/quickstart"
