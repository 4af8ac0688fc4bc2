#!/usr/bin/env bash
# matrix: once
# seconds: 9
# The status page in a headless Chromium, against a server under load: its numbers are those of ctl stats, it asks no other origin, its
# console is silent, it fits 400 and 1600 pixels, has contrast in both themes, and is used by keyboard.
. "$(dirname "$0")/lib.sh"

CACHE=16M
# An image that is not there gives an export any name at all.
HOSTILE="<img src=x onerror=alert(1)>'\"&amp;"
exports=("db=file:path=$DIR/db.img,size=64M" "slow=delay:read=2ms,tenant=acme,of=mem:size=16M" "bad=error:rate=100%,op=read,of=mem:size=1M" "$DIR/$HOSTILE")
serve --control "$CONTROL" --metrics 127.0.0.1:0 --strict=off --tenant acme,weight=300,iops-read=90000,latency-target=50ms --tenant idle "${exports[@]}"
PAGE=$(sed -n 's/^status page: //p' "$OUT")
check "the start message names the page" test -n "$PAGE"
script status_page.py requests "$PAGE"
if "$PYTHON" "$HERE/browser.py"; then
    script status_page.py page "$HEADWORKS" "$CONTROL" "$PAGE" "$SOCKET" "$DIR" "$HOSTILE"
    script status_page.py lost "$HEADWORKS" "$PAGE" "$SERVER" "$DIR"
    # The script has stopped the server.
    wait "$SERVER"
    check "SIGTERM ends a server whose page is open with 0" test $? -eq 0
    SERVER=0
    no_panic
else
    skip "the status page in a browser" "no Chromium is installed (Debian's chromium-headless-shell)"
    stop_server
fi
