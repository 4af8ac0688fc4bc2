#!/usr/bin/env bash
# matrix: engine,backend,cache
# fio with four jobs, each on its own connection and quarter of the disk: every block is read back by checksum.
. "$(dirname "$0")/lib.sh"

serve "$(spec disk)"
fio_nbd() { # OPTIONS...
    fio --name=verify --ioengine=nbd --uri="$URI" --thread --numjobs=4 --size=$((SIZE / 4)) --offset_increment=$((SIZE / 4)) \
        --verify=crc32c --verify_fatal=1 --verify_dump=0 --group_reporting --output-format=terse --randseed=1 \
        --aux-path="$DIR" --verify_state_save=0 "$@"
}
check "randrw, 4 KiB, depth 32, 4 jobs, crc32c" fio_nbd --rw=randrw --bs=4k --iodepth=32 --io_size=12M
check "randwrite, 4 to 64 KiB, depth 16, verified while writing" \
    fio_nbd --rw=randwrite --bsrange=4k-64k --blockalign=4k --iodepth=16 --verify_backlog=64 --io_size=24M
check "write, 1 MiB, depth 4, then verify" fio_nbd --rw=write --bs=1M --iodepth=4
check "randwrite with trims and flushes between" fio_nbd --rw=randtrimwrite --bs=16k --iodepth=8 --io_size=8M --verify=0 --fsync=32
stop_server
