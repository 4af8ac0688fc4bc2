#!/usr/bin/env bash
# matrix: once
# What `make install` lays down: pages that man(1) shows without complaint, completions that complete, units that systemd takes.
. "$(dirname "$0")/lib.sh"

ROOT=$DIR/root
SOURCES=$(cd "$HERE/../.." && pwd)
# The binary's own path, in units, too.
check "make install" make -s -C "$SOURCES" install HEADWORKS="$(realpath "$HEADWORKS")" PREFIX=/opt/hw DESTDIR="$ROOT"
INSTALLED=$ROOT/opt/hw
check "the installed binary runs" "$INSTALLED/bin/headworks" --version
stripped() { # FILES...: no debug information, no symbols
    ! readelf --section-headers --wide "$@" | grep -E '\.debug_(info|line)|\.symtab'
}
check "it is stripped, and so is what it runs" stripped "$INSTALLED/bin/"headworks{,-bench}
check "headworks bench runs what is installed beside it" env PATH= "$INSTALLED/bin/headworks" bench --device null:size=1G --ios 1000

# Every command, from the help alone, has a page.
commands() { # WORDS...: the commands below them
    "$HEADWORKS" "$@" --help | sed -n '/^Commands:/,/^$/s/^  \([a-z0-9-]*\) .*/\1/p' | grep -vxE 'help|lab' # headworks-lab has its own pages
}
every_page() {
    local one page
    for one in $(commands); do
        [ -s "$INSTALLED/share/man/man1/headworks-$one.1" ] || { echo "no page of $one"; return 1; }
    done
    for page in headworks-{serve,ctl,ctl-log-level,bench,info}.1; do
        [ -s "$INSTALLED/share/man/man1/$page" ] || { echo "no $page"; return 1; }
    done
    [ "$("$HEADWORKS" man | wc -l)" -eq "$(find "$INSTALLED/share/man/man1" -type f | wc -l)" ]
}
check "every command has a page" every_page
BIN=$(dirname "$(realpath "$HEADWORKS")")
check "make install-lab" make -s -C "$SOURCES" install-lab LAB="$BIN/headworks-lab" PREFIX=/opt/hw DESTDIR="$ROOT"
check "headworks lab runs what is installed beside it" env PATH= "$INSTALLED/bin/headworks" lab --version
check "every experiment has a page" bash -c '
    for page in $("$1/bin/headworks-lab" man); do [ -s "$1/share/man/man1/$page" ] || { echo "no $page"; exit 1; }; done' - "$INSTALLED"
pages_named() { # SECTION: pages that are referred to are there
    local name
    for name in $(cat "$INSTALLED"/share/man/man*/* | sed 's/\\-/-/g; s/\\f[BRIP]//g' | grep -oE "headworks[a-z.-]*\([157]\)" | sort -u); do
        [ -s "$INSTALLED/share/man/man${name: -2:1}/${name%(*}.${name: -2:1}" ] || { echo "no page for $name"; return 1; }
    done
}
check "every page that a page refers to is there" pages_named
if command -v groff >/dev/null; then
    formats() {
        local page said
        for page in "$INSTALLED"/share/man/man*/*; do
            said=$(groff -t -man -Tutf8 -ww "$page" 2>&1 >"$DIR/page.txt")
            [ -z "$said" ] || { echo "$page: $said"; return 1; }
            # A table that tbl did not see is a heap of words.
            ! grep -q '^\.[A-Z]' "$DIR/page.txt" || { echo "$page shows a request"; return 1; }
        done
    }
    check "groff formats every page and warns of nothing" formats
else
    skip "the pages are formatted" "there is no groff"
fi

completes() { # WORDS: what bash offers for the last of them
    COMP_WORDS=("$@")
    COMP_CWORD=$(($# - 1))
    COMPREPLY=()
    "${COMP:-_headworks}" headworks "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}" >/dev/null
    echo "${COMPREPLY[*]}"
}
(
    # shellcheck disable=SC1091 # it was just written
    . "$INSTALLED/share/bash-completion/completions/headworks"
    check "headworks ser<TAB>" test "$(completes headworks ser)" = serve
    check "headworks ctl sock log<TAB>" test "$(completes headworks ctl sock log)" = log-level
    check "headworks serve --sand<TAB>" test "$(completes headworks serve --sand)" = --sandbox
    check "headworks serve --scheduler b<TAB>" test "$(completes headworks serve --scheduler b)" = bfq
    check "headworks bench --rw randr<TAB>" test "$(completes headworks bench --rw randr)" = "randread randrw"
    # Names of a running server.
    PATH=$INSTALLED/bin:$PATH
    COMP=_headworks_with_names
    serve --control "$CONTROL" "db=mem:size=1M" "logs=mem:size=1M"
    check "headworks ctl sock resize d<TAB>" test "$(completes headworks ctl "$CONTROL" resize d)" = db
    check "a path up to its next slash" test "$(completes headworks ctl "$CONTROL" get exports/)" = "exports/db/ exports/logs/"
    check "a path behind a value" test "$(completes headworks ctl "$CONTROL" set exports/db/weight 7 exports/db/iopr)" = exports/db/ioprio
    export HEADWORKS_CONTROL=$CONTROL
    check "by the variable" test "$(completes headworks ctl get hw0/queue/nom)" = hw0/queue/nomerges
    check "commands as ever" test "$(completes headworks ctl log)" = log-level
    stop_server
    check "without a server: nothing, and no error" test -z "$("$HEADWORKS" complete-ctl ctl get hw 2>&1)"
    exit $BAD
) || BAD=1
for shell in zsh fish; do
    check "$shell hears of every command" bash -c '
        for one in $("$1" man | sed -n "s/^headworks-\([a-z]*\)\.1$/\1/p"); do
            "$1" completions "$2" | grep -q "$one" || { echo "no $one"; exit 1; }
        done' - "$HEADWORKS" $shell
done

UNITS=$INSTALLED/lib/systemd/system
check "units name the installed binary" grep -q '^ExecStart=/opt/hw/bin/headworks serve --config /etc/headworks/%i.toml$' "$UNITS/headworks@.service"
if command -v systemd-analyze >/dev/null; then
    # It wants a binary where the unit says.
    takes() {
        local said
        mkdir -p "$DIR/units"
        for unit in "$UNITS"/*; do
            sed "s|/opt/hw/|$INSTALLED/|" "$unit" >"$DIR/units/${unit##*/}"
        done
        said=$(systemd-analyze verify --man=no "$DIR"/units/* 2>&1) && [ -z "$said" ] || { echo "$said"; return 1; }
    }
    check "systemd takes the units and warns of nothing" takes
    # A user of its own for one instance: nothing that names the shared user, its images or its runtime directory is left.
    separate() {
        local drop=$INSTALLED/share/doc/headworks/separate-user.conf key said
        for key in $(sed -n 's/^\([A-Za-z]*\)=\(.*[/= ]\)\?headworks$/\1/p' "$UNITS/headworks@.service" | sort -u); do
            grep -q "^$key=.*headworks-%i$" "$drop" || { echo "$key is shared"; return 1; }
        done
        mkdir -p "$DIR/units/headworks@acme.service.d"
        cp "$DIR/units/headworks@.service" "$DIR/units/headworks@acme.service"
        cp "$drop" "$DIR/units/headworks@acme.service.d/user.conf"
        said=$(systemd-analyze verify --man=no "$DIR/units/headworks@acme.service" 2>&1) && [ -z "$said" ] || { echo "$said"; return 1; }
    }
    check "a drop-in separates an instance from the others" separate
    # Exports as files: all that gives the service a mount namespace is off, and the capabilities that are left are enough for a mount.
    files() {
        local drop=$INSTALLED/share/doc/headworks/files.conf key said
        for key in $(grep -oE '^(PrivateTmp|Protect(System|Home|Proc|ControlGroups|Hostname|Kernel[A-Za-z]*))=' "$UNITS/headworks@.service"); do
            grep -qE "^$key(no|default)$" "$drop" || { echo "$key is on"; return 1; }
        done
        mkdir -p "$DIR/units/headworks@files.service.d"
        cp "$DIR/units/headworks@.service" "$DIR/units/headworks@files.service"
        cp "$drop" "$DIR/units/headworks@files.service.d/files.conf"
        said=$(systemd-analyze verify --man=no "$DIR/units/headworks@files.service" 2>&1) && [ -z "$said" ] || { echo "$said"; return 1; }
    }
    check "a drop-in lets an instance mount files" files
    check "the service is closed: exposure 3.5 at most" systemd-analyze security --offline=yes --threshold=35 "$UNITS/headworks@.service"
    check "sysusers.d is taken" bash -c '! systemd-sysusers --dry-run "$1" 2>&1 | tee /dev/stderr | grep -qi fail' - "$INSTALLED/lib/sysusers.d/headworks.conf"
else
    skip "systemd takes the units" "there is no systemd-analyze"
fi
if [ "$(id -u)" -eq 0 ] && [ -w /dev/fuse ]; then
    # What the drop-in leaves to root, as far as this root has it.
    bounds=$(sed -n 's/^CapabilityBoundingSet=//p' "$INSTALLED/share/doc/headworks/files.conf" | tr ' ' '\n' | tr A-Z a-z | sed 's/^cap_//')
    has() { capsh --print | grep -q "^Bounding.*cap_$1"; }
    bounds=$(for one in $bounds; do has "$one" && printf ',+%s' "$one"; done)
    # Where the user may go.
    files=$(mktemp -d /tmp/hw-files.XXXXXX)
    chmod 755 "$files"
    trap 'rmdir "$files"; cleanup' EXIT
    setpriv --no-new-privs --bounding-set="-all$bounds" "$HEADWORKS" serve --cache 0 -U "$SOCKET" --user nobody --fuse "$files" \
        disk=mem:size=1M >"$OUT" 2>"$LOG" &
    SERVER=$!
    as_user() { setpriv --reuid nobody --regid "$(id -g nobody)" --clear-groups "$@"; }
    check "with the capabilities of the drop-in files are mounted for a user" wait_until 20 grep -q "^file: " "$OUT"
    check "who reads and writes one" as_user dd if=/dev/zero of="$files/disk" bs=4k count=1 conv=notrunc,fsync
    check "the server has no capability left" grep -q '^CapPrm:.0*$' /proc/$SERVER/status
    stop_with TERM
    check "nothing stays mounted" bash -c '! grep " $1/" /proc/self/mountinfo' - "$files"
else
    skip "files with the capabilities of the drop-in" "it takes root and /dev/fuse"
fi
check "the control socket has its name, and no other has it" bash -c '
    grep -qx "FileDescriptorName=control" "$1/headworks-control@.socket" && ! grep -q "FileDescriptorName=control" "$1/headworks@.socket"' - "$UNITS"

# What is not ours stays.
touch "$INSTALLED/share/man/man1/other.1"
as_installed() { make -s -C "$SOURCES" "$@" PREFIX=/opt/hw DESTDIR="$ROOT"; }
check "make uninstall" as_installed uninstall
left() { (cd "$INSTALLED" && find . -type f | sort); }
only_the_lab_is_left() {
    left | grep -vE '^\./(bin/headworks-lab|share/.*headworks-lab.*|share/man/man1/other\.1)$' && return 1
    [ -x "$INSTALLED/bin/headworks-lab" ] && [ ! -d "$INSTALLED/share/doc/headworks" ]
}
check "the experiments and foreign files stay" only_the_lab_is_left
check "make uninstall-lab" as_installed uninstall-lab
check "nothing of Headworks is left" test "$(left)" = ./share/man/man1/other.1
refused() { [[ $(as_installed uninstall 2>&1) == *"uninstall: error: there is no $INSTALLED/bin/headworks: give PREFIX"* ]]; }
check "a second uninstall says that nothing is there" refused
