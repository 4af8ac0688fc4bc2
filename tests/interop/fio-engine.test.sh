#!/usr/bin/env bash
# matrix: once
# seconds: 5
# fio's external engine: jobs on a disk of ours in fio's own process, every block read back by checksum; and what fio and the engine say of
# mistakes.
. "$(dirname "$0")/lib.sh"

SOURCES=$(cd "$HERE/../.." && pwd)
LIBRARY=$(dirname "$HEADWORKS")
build() { "$SOURCES/scripts/fio-engine" "$@"; } # OUTPUT LIBRARIES OPTION...
reason=$(build "$DIR/engine.so" "$LIBRARY" 2>&1)
case $? in
0) say ok "the engine compiles against fio's headers" ;;
77)
    skip "fio's external engine" "${reason#fio-engine: }"
    exit 0
    ;;
*)
    say "not ok" "the engine compiles against fio's headers"
    quote <<<"$reason"
    exit 1
    ;;
esac

# A failed job's status is fio's.
job() { # ENGINE OPTIONS...
    timeout --kill-after=5 120 fio --name=a --ioengine="external:$1" --output-format=terse --aux-path="$DIR" --verify_state_save=0 --randseed=1 "${@:2}"
}
verified() { # SPEC OPTIONS...
    job "$DIR/engine.so" --spec="$1" --verify=crc32c --verify_fatal=1 --verify_dump=0 "${@:2}"
}
says() { # WORDS COMMAND...: it fails, and says so
    local said
    said=$("${@:2}" 2>&1) && return 1
    echo "$said"
    grep -q -- "$1" <<<"$said"
}

memory=$(mktemp -d /dev/shm/headworks-fio.XXXXXX) || exit 1
trap 'rm -rf "$memory"' EXIT
file=file:path=$IMAGES/a.img,size=16M tmpfs=file:path=$memory/a.img,size=16M
for spec in "$file" "$tmpfs"; do
    check "${spec%%,*}: randwrite, 4 KiB, depth 32" verified "$spec" --rw=randwrite --bs=4k --iodepth=32
done
check "cached: randrw, 4 KiB, depth 16" verified "$file" --cache=8M --rw=randrw --bs=4k --iodepth=16
check "cached: buffers of no whole pages, which are copied" verified "$file" --cache=8M --rw=randwrite --bs=3k --iodepth=8 --size=3M
check "4 to 64 KiB, verified while writing" verified "$file" --rw=randwrite --bsrange=4k-64k --blockalign=4k --iodepth=16 --verify_backlog=64
check "trims and flushes between" job "$DIR/engine.so" --spec="$file" --rw=randtrimwrite --bs=16k --iodepth=8 --io_size=4M --fsync=32
check "four threads on one disk" verified "$file" --thread --numjobs=4 --owner=shared --size=4M --offset_increment=4M --rw=randwrite --bs=4k --iodepth=8
check "mq-deadline" verified "$tmpfs" --scheduler=mq-deadline --rw=randwrite --bs=4k --iodepth=8 --size=1M

cp "$memory/a.img" "$DIR/fio.img"
check "the image has what fio wrote: its own engine verifies it" fio --name=a --filename="$DIR/fio.img" --rw=randwrite --bs=4k --size=1M \
    --randseed=1 --verify=crc32c --verify_only --verify_state_save=0 --output-format=terse
printf 'x' | dd of="$memory/a.img" bs=1 seek=5000 conv=notrunc status=none
check "a block that is another fails the job" says 'verify' verified "$tmpfs" --rw=randwrite --bs=4k --iodepth=8 --size=1M --verify_only
check "a job without a SPEC is told" says 'spec= is missing' job "$DIR/engine.so" --rw=read
check "a wrong SPEC is told" says 'device type' job "$DIR/engine.so" --spec=mum: --rw=read
check "an error of the device is the job's" says 'Input/output error' job "$DIR/engine.so" --spec=error:errno=EIO,op=read,of=mem:size=1M --rw=read
check "an engine for another fio compiles" build "$DIR/other.so" "$LIBRARY" -DHW_IOOPS_VERSION=1
check "fio refuses it with its own message" says 'bad ioops version 1 ' job "$DIR/other.so" --spec=mem:size=1M --rw=read
exit $BAD
