#!/usr/bin/env bash
# matrix: once
# The commands of README and guides: options and specifications of every `headworks serve` are accepted, those of `ctl` and `info` are
# spelled right, and the examples of backups and wrappers do what the page says.
. "$(dirname "$0")/lib.sh"

SOURCES=$(cd "$HERE/../.." && pwd)
cd "$DIR" || exit 1

# The commands of a page, one a line: without a comment, a background mark, and the command of --run.
commands_of() { # PAGE WORD...: of these commands of headworks
    local words
    words=$(IFS='|' && echo "${*:2}")
    sed -e ':a' -e '/\\$/N; s/\\\n */ /; ta' "$1" |
        sed -nE "s/^    (\\$ )?(sudo )?(HEADWORKS_[A-Z]*=[^ ]* )?headworks ($words) /headworks \\4 /p" |
        sed -e 's/  *#.*$//' -e 's/ *&$//' -e "s/ --run '.*'//"
}
headworks() { "$HEADWORKS" "$@"; }
accepted() { # PAGE
    local command count=0 said bad=0
    # Files that commands of the pages name.
    printf '[server]\nunix = "/tmp/x"\n[[export]]\nname = ""\nmem = { size = "1M" }\n' >main.toml
    while read -r command; do
        count=$((count + 1))
        said=$(eval "$command --dump-config" 2>&1) || { printf '%s\n' "$command" "$said"; bad=1; }
    done < <(commands_of "$1" serve)
    # They would reach a server of this machine: only parsed, up to what follows them.
    while read -r command; do
        count=$((count + 1))
        said=$(eval "${command%% [&|>]*} --help" 2>&1) || { printf '%s\n' "$command" "$said"; bad=1; }
    done < <(commands_of "$1" ctl info)
    echo "$count commands"
    [ $bad -eq 0 ] && [ $count -gt 0 ]
}
for page in "$SOURCES"/README.md "$SOURCES"/docs/guide/*.md; do
    [ -z "$(commands_of "$page" serve ctl info)" ] || check "commands of ${page##*/}" accepted "$page"
done

# wrappers.md: what each of them does to a client.
io() { # SPEC COMMANDS...: of qemu-io; a failed one is an error
    local spec=$1
    shift
    "$HEADWORKS" serve --engine "$ENGINE" --cache 0 "$spec" --run "qemu-io -f raw $(printf ' -c "%s"' "$@") \"\$uri\"" 2>&1
}
fails_with() { # ERROR SPEC COMMANDS...
    local said
    said=$(io "${@:2}")
    echo "$said"
    grep -q "failed: $1" <<<"$said"
}
check "a bad spot" fails_with 'Input/output error' error:range=10M-20M,errno=EIO,of=mem:size=64M 'read 12M 4k'
check "beside it nothing fails" io error:range=10M-20M,errno=EIO,of=mem:size=64M 'read 20M 4k' 'write 0 4k'
check "full after two writes" fails_with 'No space left on device' error:after=2,errno=ENOSPC,op=write,of=mem:size=64M 'write 0 4k' 'write 1M 4k' 'write 2M 4k'

# backup.md: a copy of a running export, and back.
serve --control "$CONTROL" "db=file:path=db.img,size=64M"
URI=$(at db)
check "a pattern is written" qemu-io -f raw -c 'write -P 7 1M 8M' "$URI"
check "backup by nbdcopy" nbdcopy "$URI" copy.img
check "backup by qemu-img" qemu-img convert -f raw -O qcow2 -c "$URI" copy.qcow2
check "both are the export" bash -c 'qemu-img compare -f raw -F qcow2 "$1" copy.qcow2 && qemu-img compare -f raw -F raw "$1" copy.img' - "$URI"
check "an export for backups, of the same image" ctl add "db-backup=file:path=$PWD/db.img,ioprio=idle,bps-read=100M" --read-only
check "has its data" qemu-img compare -f raw -F raw "$(at db-backup)" copy.img
check "and goes" ctl remove db-backup
check "a frozen export is copied, with what was only in the cache" bash -c '
    qemu-io -f raw -c "write -P 6 40M 1M" "$1" && shift && "$@" && qemu-io -r -f raw -c "read -P 6 40M 1M" -c "read -P 7 1M 8M" db-snap.img' - \
    "$URI" "$HEADWORKS" ctl "$CONTROL" freeze db --run 'cp --reflink=auto db.img db-snap.img'
check "frozen by hand" ctl freeze 'd*' --timeout 30s
check "and thawed" ctl thaw 'd*'
check "the export is changed" qemu-io -f raw -c 'write -P 8 1M 8M' "$URI"
check "restore by nbdcopy" nbdcopy --flush copy.img "$URI"
check "the old data are back" qemu-io -r -f raw -c 'read -P 7 1M 8M' "$URI"
stop_server

# containers.md: the manifests.
if "$PYTHON" -c 'import yaml' 2>/dev/null; then
    script manifests.py "$HEADWORKS" "$SOURCES/packaging/kubernetes/headworks.yaml" "$SOURCES/packaging/oci/compose.yaml" "$DIR"
else
    skip "manifests" "there is no yaml for Python"
fi
