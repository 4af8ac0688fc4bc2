#!/usr/bin/env bash
# Linux's own bfq and mq-deadline on the modelled disk of the experiments, beside ours: shares, start-up, soft real time.
#
#   benches/linux-bfq.sh [--case E1,E5,E8] [--scheduler none,mq-deadline,bfq] [--seconds N] [--seed N] [--rows FILE] [--json]
#
# A guest without hardware acceleration runs Debian's kernel and, inside, `headworks serve model:` behind the kernel's NBD client. Its
# clock counts instructions and jumps over idle time (qemu -icount sleep=off): a second of the guest is a second of its disk, however
# busy the host is. The queue has what a disk of this kind has: 32 commands, rotational, max_sectors_kb 1280.
# Ours are the rows of `headworks-lab run bfq` in virtual time. Exit status 1: a figure of ours is behind Linux's
# bfq by more than 10 % and is not known to be (benches/linux-bfq.py).
# --rows keeps the guest's rows, or takes them if the file is there. A case of a minute takes one to five minutes.
# As root it installs what is missing (Debian, amd64): qemu-system-x86, busybox-static, nbd-client; the kernel is only unpacked.
. "$(dirname "$0")/lib.sh"

cases=E1,E5,E8,random-beside-d1 schedulers=none,mq-deadline,bfq seconds=() seed=1 rows='' json=()
while [ $# -gt 0 ]; do
    case $1 in
    --json) json=(--json) && shift && continue ;;
    --case) cases=$2 ;;
    --scheduler) schedulers=$2 ;;
    --seconds) seconds=(--seconds "$2") ;;
    --seed) seed=$2 ;;
    --rows) rows=$2 ;;
    *)
        echo "usage: $(sed -n 's/^#   //p' "$0" | head -n 1)" >&2
        exit 2
        ;;
    esac
    shift 2
done
die() {
    echo "linux-bfq.sh: error: $*" >&2
    exit 1
}
[ -x "$LAB" ] || die "there is no $LAB: make lab PROFILE=dist"
[ "$(uname -m)" = x86_64 ] || die "the guest is x86-64; so must this machine be"
export PATH=$PATH:/usr/sbin:/sbin
CACHE=$root/target/linux-bfq
GUEST=$SCRATCH/guest

install_missing() {
    local missing=()
    command -v qemu-system-x86_64 >/dev/null || missing+=(qemu-system-x86)
    command -v busybox >/dev/null || missing+=(busybox-static)
    command -v nbd-client >/dev/null || missing+=(nbd-client)
    [ ${#missing[@]} -eq 0 ] || apt-get -q -q -o DPkg::Lock::Timeout=600 install -y --no-install-recommends "${missing[@]}" >/dev/null ||
        die "these packages are missing: ${missing[*]}"
}

# The newest kernel of the distribution, unpacked and not installed: KERNEL and MODULES.
unpack_kernel() {
    mkdir -p "$CACHE"
    if ! compgen -G "$CACHE/boot/vmlinuz-*" >/dev/null; then
        local package
        package=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: *\(linux-image-[^ ]*\).*/\1/p' | head -n 1)
        [ -n "$package" ] || die "apt knows no linux-image-amd64: apt-get update"
        (cd "$CACHE" && apt-get -q -q download "$package" 2>/dev/null) || die "apt-get download $package failed"
        dpkg-deb -x "$CACHE/$package"_*.deb "$CACHE" || die "$package cannot be unpacked"
        rm -f "$CACHE"/*.deb
    fi
    KERNEL=$(compgen -G "$CACHE/boot/vmlinuz-*" | head -n 1)
    MODULES=$CACHE/lib/modules/${KERNEL#*/vmlinuz-}/kernel
}

add_program() { # PATH-ON-THE-HOST NAME
    install -D "$1" "$GUEST/bin/$2"
    strip "$GUEST/bin/$2" 2>/dev/null # a smaller guest; as it is, it works too
    local library
    for library in $(ldd "$1" 2>/dev/null | grep -o '/[^ )]*'); do
        install -D "$library" "$GUEST$library"
    done
}

make_initramfs() {
    mkdir -p "$GUEST"/{bin,dev,proc,sys,run,tmp,cgroup,modules}
    add_program "$(command -v busybox)" busybox
    add_program "$(command -v nbd-client)" nbd-client
    add_program "$LAB" headworks-lab
    add_program "$HEADWORKS" headworks
    cp "$MODULES/drivers/block/nbd.ko" "$MODULES/block/bfq.ko" "$GUEST/modules/" || die "this kernel has no nbd or bfq module"
    cat >"$GUEST/init" <<INIT
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t cgroup2 cgroup /cgroup
insmod /modules/nbd.ko nbds_max=1 max_part=0
insmod /modules/bfq.ko
# A reply of 1 MiB fits the socket.
echo 4194304 >/proc/sys/net/core/wmem_max
echo 4194304 >/proc/sys/net/core/wmem_default
headworks serve --cache 0 --buffers 64M --queue-depth 128 -U /run/disk model:profile=hdd-7200,flushes=off,of=null:size=4000000000000 >/run/served 2>&1 &
server=\$!
until [ -S /run/disk ]; do sleep 0.01; done
nbd-client -unix /run/disk /dev/nbd0 -b 512
cd /sys/block/nbd0/queue
# Without a scheduler nr_requests is the depth of the device's tags: those of a disk, not the 128 of the driver.
echo none >scheduler
echo 32 >nr_requests
echo 1 >rotational
echo 1280 >max_sectors_kb
headworks-lab run bfq-linux --device /dev/nbd0 --case $cases --scheduler $schedulers ${seconds[*]} --seed $seed >/dev/ttyS1 2>/run/errors
echo "rows end with \$?"
cat /run/errors
nbd-client -d /dev/nbd0
kill \$server
wait
cat /run/served
poweroff -f
INIT
    chmod +x "$GUEST/init"
    (cd "$GUEST" && find . | busybox cpio -o -H newc 2>/dev/null | gzip -1) >"$SCRATCH/initramfs" || die "the initramfs cannot be made"
}

run_guest() {
    local options=(-accel "tcg,thread=single" -icount "shift=0,sleep=off" -rtc clock=vm -cpu qemu64 -m 1G -nodefaults -no-user-config
        -display none -no-reboot -kernel "$KERNEL" -initrd "$SCRATCH/initramfs"
        -append "console=ttyS0 loglevel=4 panic=-1 tsc=reliable mitigations=off init_on_alloc=0"
        -serial "file:$SCRATCH/console" -serial "file:$SCRATCH/rows")
    timeout 14400 qemu-system-x86_64 "${options[@]}" </dev/null &
    PIDS+=($!)
    wait $!
    local status=$?
    tr -d '\r' <"$SCRATCH/console" >"$SCRATCH/console.text"
    if [ $status -ne 0 ] || ! grep -q '^rows end with 0$' "$SCRATCH/console.text"; then
        tail -n 30 "$SCRATCH/console.text" >&2
        die "the guest did not complete its rows (qemu: $status)"
    fi
    sed -n 's/.*\(model hdd-7200: .*\)/guest: \1/p' "$SCRATCH/console.text" >&2
}

machine >&2
if [ -z "$rows" ] || [ ! -s "$rows" ]; then
    install_missing
    unpack_kernel
    make_initramfs
    echo "guest: $(basename "$KERNEL"), $(qemu-system-x86_64 --version | head -n 1)" >&2
    run_guest
    tr -d '\r' <"$SCRATCH/rows" >"$SCRATCH/linux.json"
    [ -z "$rows" ] || cp "$SCRATCH/linux.json" "$rows"
    rows=$SCRATCH/linux.json
fi
"$LAB" run bfq --virtual-only --device hdd-32 --case "$cases" "${seconds[@]}" --seed "$seed" --json >"$SCRATCH/ours.json"
[ -s "$SCRATCH/ours.json" ] || die "headworks-lab run bfq printed nothing"
python3 "$root/benches/linux-bfq.py" "${json[@]}" "$rows" "$SCRATCH/ours.json"
