#!/usr/bin/env bash
# matrix: engine
# seconds: 20
# lock: host
# Exports as files of FUSE: fio's verification beside an NBD client of the same export, file systems, holes, permissions, live changes, an upgrade, kill -9.
. "$(dirname "$0")/lib.sh"

if ! [ -w /dev/fuse ] && ! command -v fusermount3 >/dev/null; then
    skip "files of FUSE" "no /dev/fuse for this user, and no fusermount3"
    exit 0
fi
files=$DIR/files
mkdir -p "$files"
disk=$files/disk
# Of a read that came later, and of one that the end has met.
gone='not connected\|connection abort'
has_size() { [ "$(stat -c %s "$1")" = "$2" ]; }
unmounted() { ! grep -q " $files/" /proc/self/mountinfo; }
empty() { [ -z "$(ls -A "$files")" ]; }
refused() { # ERROR COMMAND...
    local output
    output=$(LC_ALL=C "${@:2}" 2>&1) && { echo "done: $output"; return 1; }
    echo "said: $output"
    grep -qi -- "$1" <<<"$output"
}
no_start() { ! launch "$@"; }

# On another filesystem: images of one share a device, which frees no space if one of them cannot.
memory=$(mktemp -d /dev/shm/hw-fuse.XXXXXX) || exit 1
trap 'rm -rf "$memory"; cleanup' EXIT
head -c 1M /dev/urandom >"$memory/ro.img"
truncate -s 64M "$IMAGES/disk.img"
serve disk="file:path=$IMAGES/disk.img" ro="file:path=$memory/ro.img,read-only=on" .b=mem:size=1M \
    --control "$CONTROL" --fuse "$files"
check "each export is a file, with its size" has_size "$disk" $((64 << 20))
check "a dot at the beginning is %2E" has_size "$files/%2Eb" $((1 << 20))
check "the start names the files" grep -q "^file: $disk\$" "$OUT"

# Coherence: what one side writes the other reads, without a flush.
pattern() { head -c 65536 /dev/urandom >"$DIR/pattern"; }
by_file() { dd if="$DIR/pattern" of="$disk" bs=777 conv=notrunc seek=5 status=none; }
from_nbd() { # what the export has where by_file wrote
    "$PYTHON" -c 'import nbd, sys
h = nbd.NBD(); h.connect_uri(sys.argv[1]); data = h.pread(65536, 777 * 5)
sys.exit(data != open(sys.argv[2], "rb").read())' "$(at disk)" "$DIR/pattern"
}
to_nbd() {
    "$PYTHON" -c 'import nbd, sys
h = nbd.NBD(); h.connect_uri(sys.argv[1]); h.pwrite(open(sys.argv[2], "rb").read(), 4096 * 9 + 1)' "$(at disk)" "$DIR/pattern"
}
from_file() { cmp <(tail -c +$((4096 * 9 + 2)) "$disk" | head -c 65536) "$DIR/pattern"; }
pattern
check "a program writes at any byte" by_file
check "an NBD client reads it" from_nbd
# What a page cache would keep, for a program that has the file open all the time.
exec 5<"$disk" && head -c 256K <&5 >/dev/null
pattern
check "an NBD client writes" to_nbd
check "a program reads it at once" from_file
exec 5<&-

verified() { # OPTIONS...
    fio --name=v --filename="$disk" --size=16M --verify=crc32c --verify_fatal=1 --verify_state_save=0 --output=/dev/null "$@"
}
beside() { # a verified job of an NBD client in another part, and one of the file
    fio --name=n --ioengine=nbd --uri="$(at disk)" --rw=randwrite --bs=4k --offset=32M --size=16M --verify=crc32c \
        --iodepth=8 --verify_state_save=0 --output=/dev/null &
    local other=$!
    verified --rw=randwrite --bs=4k --iodepth=16 --ioengine=libaio --direct=1 && wait "$other"
}
if command -v fio >/dev/null; then
    check "fio verifies direct I/O beside an NBD client" beside
    check "fio verifies buffered I/O of odd sizes" verified --rw=randrw --bsrange=512-192k --ioengine=psync --fsync=16 --io_size=24M
    check "fio verifies a mapping" verified --rw=randwrite --bs=4k --ioengine=mmap --io_size=4M
else
    skip "fio on the file" "no fio"
fi

ext4() { mkfs.ext4 -q -F "$disk" && e2fsck -fn "$disk"; }
check "mkfs.ext4 and e2fsck on the file" ext4
holes() {
    fallocate -p -o 1M -l 16M "$disk" && fallocate -z -o 0 -l 1M "$disk" &&
        cmp -n $((17 << 20)) "$disk" /dev/zero
}
check "holes and zeroes read as zeros" holes
freed() { # the image has fewer blocks than before
    dd if=/dev/urandom of="$disk" bs=1M count=16 seek=32 conv=notrunc,fsync status=none
    local before after
    before=$(stat -c %b "$IMAGES/disk.img")
    fallocate -p -o 32M -l 16M "$disk" && sync -d "$disk"
    after=$(stat -c %b "$IMAGES/disk.img")
    echo "blocks: $before, then $after"
    [ "$after" -lt "$before" ]
}
check "a punched hole frees the image's space" freed
looped() { # a file system on a loop device of the file, whose trim reaches the image
    local loop status before
    mkdir -p "$DIR/mnt"
    loop=$(losetup -f --show "$disk") || return 1
    mkfs.ext4 -q "$loop" && mount "$loop" "$DIR/mnt" && head -c 16M /dev/urandom >"$DIR/mnt/f" && sync -f "$DIR/mnt" &&
        before=$(stat -c %b "$IMAGES/disk.img") && rm "$DIR/mnt/f" && sync -f "$DIR/mnt" && fstrim "$DIR/mnt" &&
        [ "$(stat -c %b "$IMAGES/disk.img")" -lt "$before" ]
    status=$?
    umount "$DIR/mnt"
    e2fsck -fn "$loop" || status=1
    losetup -d "$loop"
    return $status
}
if [ "$(id -u)" = 0 ] && losetup -f >/dev/null 2>&1; then
    check "ext4 on a loop device of the file, and its trim" looped
else
    skip "a loop device of the file" "no right to one"
fi
copied() { qemu-img convert -f raw -O raw "$disk" "$DIR/copy.img" && qemu-img compare -f raw -F raw "$disk" "$DIR/copy.img"; }
command -v qemu-img >/dev/null && check "qemu-img copies the file, and finds it equal" copied
check "a smaller size is refused" refused "not permitted" truncate -s 1M "$disk"
check "a larger size is refused" refused "too large" truncate -s 100M "$disk"
check "a write behind the end is refused" refused "no space" dd if=/dev/zero of="$disk" bs=4k count=1 seek=$((64 << 8)) conv=notrunc
check "a read-only export is read" cmp "$files/ro" "$memory/ro.img"
check "its mode says so" sh -c '[ "$(stat -c %a "$1")" = 444 ]' - "$files/ro"
check "it takes no writer" refused "read-only" dd if=/dev/zero of="$files/ro" count=1 conv=notrunc

check "a file is a client of its export" says_like "fuse .*/disk .*export disk" connections
check "an export that is added is a file" ctl add "new=mem:size=2M"
check "with its size, at once" has_size "$files/new" $((2 << 20))
long=$(printf 'n%.0s' {1..300})
check "an export whose name is too long for a file is added with a note" says_like "^note: export $long is no file in $files: its name is longer" add "$long=mem:size=1M"
check "--json has it" says_like '"export mn+ is no file in .*: its name is longer' add --json "m$long=mem:size=1M"
ctl remove "m$long" >/dev/null
ctl remove "$long" >/dev/null
echo content >"$files/taken"
check "so is one whose file cannot be mounted" says_like "^note: export taken is no file in $files: " add "taken=mem:size=1M"
check "whose content stays" grep -q content "$files/taken"
rm "$files/taken"
ctl remove taken >/dev/null
check "one that no program has open is removed" ctl remove new
check "and its file is gone" wait_until 10 test ! -e "$files/new"
check "an export of the same name again is a file" ctl add "new=mem:size=3M"
check "with its own size" wait_until 10 has_size "$files/new" $((3 << 20))
check "a file that its user unmounts is gone" sh -c 'umount "$1" || fusermount3 -u "$1"' - "$files/new"
check "its export stays" wait_until 10 sh -c '! "$@" | grep -q /new' - "$HEADWORKS" ctl "$CONTROL" connections
check "and is removed as others are" ctl remove new
mkdir -p "$DIR/other"
check "no directory is added while it runs" refused "restart the server" ctl add-listener "kind=fuse,path=$DIR/other"
exec 6<"$files/%2Eb"
check "one that is open is not removed" refused "has a client" ctl remove .b
check "but by force" ctl remove --force .b
check "programs that have it open are told" refused "$gone" head -c 1 <&6
exec 6<&-
check "an export that grows" ctl resize disk 96M
check "shows its size" has_size "$disk" $((96 << 20))
check "the file of an export is no image" refused "the image of that export" ctl add "self=file:path=$disk"
check "and no base of an overlay" refused "the image of that export" ctl add "self=overlay:path=$IMAGES/o.img,base=$disk"
exec 8<>"$disk"
check "an upgrade keeps the files" ctl upgrade
SERVER=$(sed -n 's/.* upgraded: process \([0-9]*\) serves now.*/\1/p' "$LOG")
check "and who has them open" sh -c 'dd if="$1" bs=64k status=none >&8 && head -c 65536 "$2" | cmp - "$1"' - "$DIR/pattern" "$disk"
check "which keeps their export from being removed" refused "has a client" ctl remove disk
exec 8<&-
frozen() { # a write waits for the thaw
    ctl freeze disk || return 1
    dd if=/dev/zero of="$disk" bs=4k count=1 conv=notrunc status=none &
    local writer=$!
    wait_until 10 says_like 'export disk, .*, [1-9][0-9]* waiting, the oldest for' connections && kill -0 "$writer" && ctl thaw disk && wait "$writer"
}
check "a freeze stops its writes" frozen

# kill -9: the helper unmounts, and no program hangs.
exec 7<"$disk"
kill -9 "$SERVER"
wait "$SERVER" 2>/dev/null
check "kill -9 leaves no mount" wait_until 10 unmounted
check "and no file" wait_until 10 empty
check "programs that had it open are told" refused "$gone" head -c 1 <&7
exec 7<&-
SERVER=0
serve disk="file:path=$IMAGES/disk.img" --control "$CONTROL" --fuse "$files"
check "another start has the file" has_size "$disk" $((96 << 20))

# The helper is killed as well: the mount stays, and the next start removes it.
helper=$(pgrep -P "$SERVER" headworks-mount)
kill -9 "$helper"
kill -9 "$SERVER"
wait "$SERVER" 2>/dev/null
SERVER=0
check "without its helper a dead mount says so" wait_until 10 refused "not connected" stat "$disk"
serve disk="file:path=$IMAGES/disk.img" --control "$CONTROL" --fuse "$files" --cache 16M
check "and the next start replaces it" has_size "$disk" $((96 << 20))
command -v fio >/dev/null && check "fio verifies what goes by the cache, beside an NBD client" beside
stop_server
check "the end of the server unmounts" unmounted
check "and leaves nothing" empty

printf '[[listen]]\nkind = "fuse"\npath = "%s"\n[[export]]\nname = "c"\nmem = { size = "1M" }\n' "$files" >"$DIR/files.toml"
serve --config "$DIR/files.toml" --control "$CONTROL"
may_start() { "$HEADWORKS" check "$DIR/files.toml" >/dev/null; }
check "its own files are no errors of the configuration" may_start
sed -i "s|^path = .*|path = \"$DIR/other\"|" "$DIR/files.toml"
check "a reload says that another directory needs a restart" refused "stays until the server is restarted" ctl reload
check "and takes no file away" has_size "$files/c" $((1 << 20))
printf '[[export]]\nname = "%s"\nmem = { size = "1M" }\n' "$long" >>"$DIR/files.toml"
check "a reload says which export is no file" refused "export $long is no file in $files: its name is longer" ctl reload
check "its listener is removed by hand" ctl remove-listener "$files"
check "with the file" wait_until 10 empty
stop_server

echo content >"$files/disk"
check "a file with content is not covered" no_start disk="file:path=$IMAGES/disk.img" --fuse "$files"
check "and stays" grep -q content "$files/disk"
# The same words by `check` as by a start.
as_a_start() { # NAME WORDS: an export of this name is no file
    local status
    printf '[[listen]]\nkind = "fuse"\npath = "%s"\n[[export]]\nname = "%s"\nmem = { size = "1M" }\n' "$files" "$1" >"$DIR/files.toml"
    "$HEADWORKS" check "$DIR/files.toml" >"$DIR/said" 2>&1
    status=$?
    grep "error: " "$DIR/said"
    [ "$status" = 1 ] && grep -q "error: .*fuse: export $1 is no file in $files: $2" "$DIR/said" && refused "fuse: export $1 is no file in $files: $2" timeout 20 "$HEADWORKS" serve --config "$DIR/files.toml" --unix "$DIR/other.sock"
}
check "a check of the configuration says so, too" as_a_start disk "there is another file"
check "and names what is too long for a file" as_a_start "$long" "its name is longer"
rm -f "$files/disk"
check "nothing else is wrong with it" sh -c 'sed -i "s/^name = .*/name = \"disk\"/" "$2" && "$1" check "$2" >/dev/null' - "$HEADWORKS" "$DIR/files.toml"
check "and nothing is made" empty

if [ "$(id -u)" = 0 ] && command -v fusermount3 >/dev/null && command -v setpriv >/dev/null; then
    other=$(mktemp -d /tmp/hw-fuse.XXXXXX)
    mkdir "$other/files"
    # Where udev runs, everybody may open the device.
    mknod -m 666 "$other/fuse" c 10 229
    chown -R nobody "$other"
    export other
    as_nobody() {
        # shellcheck disable=SC2016 # the inner shell expands them
        unshare -m sh -c 'mount --bind "$other/fuse" /dev/fuse && HOME=$other exec setpriv --reuid=nobody --clear-groups --inh-caps=-all \
            "$HEADWORKS" serve d=mem:size=1M --fuse "$other/files" -U "$other/s" --cache 0 \
            --run "dd if=/dev/zero of=$other/files/d bs=4k count=256 conv=notrunc,fsync status=none && grep -q fuse /proc/mounts && stat -c %U $other/files/d"' |
            grep -qx nobody
    }
    check "without root it is fusermount3's" as_nobody
    check "and nothing is left" sh -c '[ -z "$(ls -A "$1")" ]' - "$other/files"
    launch --user nobody d=mem:size=1M --fuse "$other/files" -U "$other/s" --cache-file off
    check "the user that a server becomes uses its files" setpriv --reuid=nobody --regid="$(id -g nobody)" --clear-groups dd if=/dev/zero of="$other/files/d" conv=notrunc count=1
    check "and root does not" refused "permission denied" dd if="$other/files/d" of=/dev/null count=1
    stop_with TERM
    rm -rf "$other"
else
    skip "files without root" "this is no root with fusermount3 and setpriv"
fi
exit "$BAD"
