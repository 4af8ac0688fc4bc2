#!/usr/bin/env bash
# matrix: either
# qemu-io by the hundred and qemu-img bench, over a unix socket and over TCP at the same time.
. "$(dirname "$0")/lib.sh"

bench() { # URI
    # 300 requests of 4 to 64 KiB; every 50th or so is followed by a flush.
    qemu-img bench -f raw -t none -w -c 300 -d 32 -s 4096 -S 8192 --pattern=171 --flush-interval=50 "$1" &&
        qemu-img bench -f raw -t none -w -c 300 -d 64 -s 65536 -o 8388608 --pattern=205 --flush-interval=80 --no-drain "$1" &&
        qemu-img bench -f raw -t none -c 600 -d 64 -s 16384 "$1"
}

for cache in 0 8M; do
    rm -f "$IMAGES/patterns.img"
    serve --cache $cache -p 0 "file:path=$IMAGES/patterns.img,size=64M"
    tcp=nbd://127.0.0.1:$(sed -n 's/^tcp: port \([0-9]*\),.*/\1/p' "$OUT")
    check "it listens on TCP, too" nbdinfo --size "$tcp"
    script qemu_patterns.py 1 "$URI" "$tcp"
    script qemu_patterns.py 2 "$tcp" "$URI"
    check "qemu-img bench by the socket" bench "$URI"
    check "qemu-img bench by TCP" bench "$tcp"
    check "what it wrote is there" qemu-io -f raw -c 'read -P 171 0 4096' -c 'read -P 171 2449408 4096' -c 'read -P 205 8388608 19660800' "$tcp"
    stop_server
done
