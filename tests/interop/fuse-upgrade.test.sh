#!/usr/bin/env bash
# matrix: engine
# seconds: 15
# lock: host
# Files of FUSE under verified load while the server is replaced: upgrades, one that fails, files that are added and removed by the configuration, the three users
# that may mount, and kill -9 after all of it.
#
# UPGRADES=50 for a long run.
. "$(dirname "$0")/lib.sh"

if ! [ -w /dev/fuse ] && ! command -v fusermount3 >/dev/null; then
    skip "files of FUSE through upgrades" "no /dev/fuse for this user, and no fusermount3"
    exit 0
fi
memory=$(mktemp -d /dev/shm/hw-fuse.XXXXXX) || exit 1
trap 'rm -rf "$memory"; cleanup' EXIT
files=$DIR/files
more=$DIR/more
mkdir -p "$files" "$more"
unmounted() { ! grep -q " $DIR/" /proc/self/mountinfo; }
helpers() { pgrep -fc -- "serve-mounts [0-9]+ .*$files"; }

# What is served, and where, by the next process.
configured() { # DIRECTORIES EXPORTS...
    local directory name
    for directory in $1; do
        printf '[[listen]]\nkind = "fuse"\npath = "%s"\n' "$directory"
    done
    for name in "${@:2}"; do
        printf '[[export]]\nname = "%s"\nfile = { path = "%s/%s.img", size = "32M" }\n' "$name" "$IMAGES" "$name"
    done
}
configure() { configured "$@" >"$DIR/files.toml"; }
upgraded() { # a new process serves
    local said
    said=$(ctl upgrade 2>&1) || { echo "$said"; return 1; }
    sed -n 's/^upgraded: process \([0-9]*\) .*/\1/p' <<<"$said" >"$DIR/pid"
    [ -s "$DIR/pid" ]
}
upgrade() { # WHAT: the next checks are of the new process
    check "$1" upgraded && SERVER=$(cat "$DIR/pid")
}
loaded() { kill -0 "$load"; }
# Children of this shell are waited for here: a check has a shell of its own.
ended() { # WHAT PROCESS OUTPUT
    wait "$2"
    local status=$?
    check "$1" sh -c 'cat "$1"; exit "$2"' - "$3" "$status"
}
refused_with() { # PATTERN
    local said
    said=$(ctl upgrade 2>&1) && { echo "upgraded: $said"; return 1; }
    echo "said: $said"
    grep -Eq -- "$1" <<<"$said"
}

configure "$files" a b
# Dirty data move as well; the load ends with an fsync.
serve --config "$DIR/files.toml" --control "$CONTROL" --cache 16M --cache-file "$memory/cache"
rm -f "$DIR/stop"
"$PYTHON" "$HERE/fuse_writer.py" "$files/a" $((32 << 20)) "$DIR/stop" "$DIR/model" >"$DIR/load" 2>&1 &
load=$!
# Which mount it is.
mount_of() { awk -v at="$files/$1" '$5 == at { print $1, $3 }' /proc/self/mountinfo; }
before=$(mount_of a)
check "the file is a mount" test -n "$before"
for ((round = 1; round <= ${UPGRADES:-5}; round++)); do
    upgrade "upgrade $round under load"
    check "whose programs go on" loaded
done
check "the mount is the same" test "$(mount_of a)" = "$before"
check "the helper that mounts is the first one" test "$(helpers)" = 1

# A program that waits while the server is paused, and one that is slow, see nothing of it either.
dd if=/dev/zero of="$files/b" bs=64k count=256 oflag=dsync conv=notrunc status=none >"$DIR/slow" 2>&1 &
other=$!
upgrade "upgrade beside a second file"
ended "which is written to its end" "$other" "$DIR/slow"

# Upgrades that fail.
configure "$files" b
check "an upgrade that would take an open file away is refused by name" refused_with "export a: programs have its file $files/a open, and it is not served any more"
check "the programs go on" loaded
configure "" a b
check "so is one without its directory" refused_with "export a: programs have its file .* open, and no listener has it as a file"
echo nonsense >"$DIR/files.toml"
check "one that cannot read its configuration changes nothing" refused_with "serves on"
check "the programs go on" loaded
check "the mount is the same" test "$(mount_of a)" = "$before"

# Files that come and go.
configure "$files $more" a c
upgrade "upgrade to another configuration"
check "a file that no program has open is gone with its export" test ! -e "$files/b"
check "a new export has its file" test "$(stat -c %s "$files/c")" = $((32 << 20))
check "in a new directory as well" cmp -n $((1 << 20)) "$more/c" /dev/zero
check "the programs go on" loaded
configure "$files" a c
upgrade "upgrade without the second directory"
check "its files are gone" wait_until 10 sh -c '[ -z "$(ls -A "$1")" ]' - "$more"
echo content >"$files/d"
configure "$files" a c d
upgrade "upgrade with an export whose file cannot be mounted"
check "which the log says" grep -q "export d is no file in $files" "$LOG"
check "its content stays" grep -q content "$files/d"
rm -f "$files/d"
: >"$DIR/stop"
ended "the programs read what they wrote" "$load" "$DIR/load"

# What was synced is on the image, whichever process answered.
check "kill -9" kill -9 "$SERVER"
check "leaves no mount, though another process started the helper" wait_until 10 unmounted
check "and no file" wait_until 10 sh -c '[ -z "$(ls -A "$1")" ]' - "$files"
check "the image has what was synced" cmp "$DIR/model" "$IMAGES/a.img"
no_panic
SERVER=0

# The next start finds nothing in its way.
configure "$files" a
serve --config "$DIR/files.toml" --control "$CONTROL" --cache 16M --cache-file "$memory/cache"
upgrade "upgrade before a stop"
stop_orphan() {
    kill -TERM "$SERVER"
    wait_until 20 is_gone "$SERVER" && unmounted
}
check "the end of the last process unmounts" stop_orphan
SERVER=0

if [ "$(id -u)" = 0 ] && command -v fusermount3 >/dev/null && command -v setpriv >/dev/null; then
    other=$(mktemp -d /tmp/hw-fuse.XXXXXX)
    mkdir "$other/files"
    mknod -m 666 "$other/fuse" c 10 229
    truncate -s 4M "$other/d.img"
    chown -R nobody "$other"
    # A program has the file open through two upgrades; then another one reads what it wrote, and the server ends.
    cat >"$other/through" <<'END'
set -e
"$HEADWORKS" serve d="file:path=$other/d.img" --fuse "$other/files" -U "$other/s" --control "$other/ctl" --cache 0 "$@" 2>"$other/log" >/dev/null &
until [ -S "$other/ctl" ] && $AS test -s "$other/files/d"; do
    kill -0 $! || { cat "$other/log"; exit 1; }
    sleep 0.05
done
$AS sh -ec 'exec 5<>"$other/files/d"
    for round in 1 2; do
        "$HEADWORKS" ctl "$other/ctl" upgrade >"$other/said" 2>&1 || { cat "$other/said"; exit 1; }
        head -c 1M /dev/urandom >"$other/data"
        dd if="$other/data" bs=64k status=none >&5
    done
    dd if="$other/files/d" bs=64k skip=16 count=16 status=none | cmp - "$other/data"'
pid=$(sed -n 's/^upgraded: process \([0-9]*\) .*/\1/p' "$other/said")
kill -TERM "$pid"
limit=400
while kill -0 "$pid" 2>/dev/null && [ $limit -gt 0 ]; do limit=$((limit - 1)); sleep 0.05; done
! grep -q " $other/files/" /proc/self/mountinfo && [ -z "$(ls -A "$other/files")" ]
END
    export other AS=""
    as_nobody() {
        unshare -m sh -c 'mount --bind "$other/fuse" /dev/fuse && HOME=$other STATE_DIRECTORY=$other exec setpriv --reuid=nobody --clear-groups --inh-caps=-all \
            timeout 60 sh "$other/through"'
    }
    check "without root fusermount3 unmounts in the end, whichever process mounted" as_nobody
    rm -f "$other/ctl" "$other/s" "$other/d.img.headworks-dirty"
    become() { timeout 60 env AS="setpriv --reuid=nobody --regid=$(id -g nobody) --clear-groups" sh "$other/through" --user nobody --cache-file off; }
    check "the user that servers become goes on with its files" become
    rm -rf "$other"
else
    skip "files without root through upgrades" "this is no root with fusermount3 and setpriv"
fi
exit "$BAD"
