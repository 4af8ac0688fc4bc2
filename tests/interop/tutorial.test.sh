#!/usr/bin/env bash
# matrix: once
# seconds: 12
# alone
# docs/guide/tutorial.md: every command of it, and what the page says that it prints. In namespaces of its own, as an administrator there:
# /etc, /run and /srv are private, and so are processes and 127.0.0.1.
. "$(dirname "$0")/lib.sh"

# The page names its places; none of them is the machine's.
private_places() {
    mkdir -p "$DIR/upper" "$DIR/work" "$IMAGES/srv" &&
        mount -t tmpfs tmpfs "$DIR/upper" && mkdir "$DIR/upper/etc" "$DIR/upper/work" &&
        mount -t overlay overlay -o "lowerdir=/etc,upperdir=$DIR/upper/etc,workdir=$DIR/upper/work" /etc &&
        mount --bind "$IMAGES/srv" /srv && mount -t tmpfs tmpfs /run && ip link set lo up &&
        echo 'headworks:x:64123:64123::/nonexistent:/usr/sbin/nologin' >>/etc/passwd && echo 'headworks:x:64123:' >>/etc/group
}

if [ "${1:-}" != inside ]; then
    for program in ip setpriv jq curl mkfs.ext4 fio; do
        PATH=$PATH:/usr/sbin:/sbin command -v "$program" >/dev/null || { skip "the tutorial" "there is no $program"; exit 0; }
    done
    if [ "$(id -u)" -ne 0 ] || ! unshare --mount --net --pid --fork --mount-proc true 2>/dev/null; then
        skip "the tutorial" "it takes root in namespaces of its own"
        exit 0
    fi
    exec unshare --mount --net --pid --fork --mount-proc "$0" inside
fi
if ! said=$(private_places 2>&1); then
    skip "the tutorial" "no private /etc, /run and /srv: $said"
    exit 0
fi
# Where the service's user may come.
shims=/run/shims
cp -r "$HERE/tutorial" "$shims" && cp "$HEADWORKS" "$shims/headworks" && chmod -R a+rX "$shims"
UNITS=$(cd "$HERE/../../packaging/systemd" && pwd)
export UNITS PATH=$PATH:/usr/sbin:/sbin
page=$(cd "$HERE/../../docs/guide" && pwd)/tutorial.md
mkdir "$DIR/home" && cd "$DIR/home" || exit 1
python3 "$HERE/tutorial.py" "$page" "$shims"
