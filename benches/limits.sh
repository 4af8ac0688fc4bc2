#!/usr/bin/env bash
# Limits beside those of qemu-storage-daemon (throttle groups) and nbdkit (the rate filter), in one run, under one client.
#
#   benches/limits.sh [--seconds 10] [--only rate|burst|share]
#
# rate: every window of 1 s, the first too, against the limit; goal +-1 %. burst: what the burst admits and what follows. share: a
# light client beside a heavy one under one limit of 20 MB/s. A row of ours prints MET or MISSED, one of a peer its figures alone.
# It needs a quiet machine: a stall of more than 4 ms of server or client is a window that is too low.
# The client (benches/limits.py) is in Python, so rates are at most 10,000 requests a second. nbdkit limits bytes only.
. "$(dirname "$0")/lib.sh"

seconds=10 only=
while [ $# -gt 0 ]; do
    case $1 in
    --seconds) seconds=$2 ;;
    --only) only=$2 ;;
    *)
        echo "usage: $(sed -n 's/^#   //p' "$0" | head -n 1)" >&2
        exit 2
        ;;
    esac
    shift 2
done
machine
QSD=${QSD:-qemu-storage-daemon}
client() { python3 "$root/benches/limits.py" "$@"; }
has() { command -v "$1" >/dev/null 2>&1; }
number=0 status=0

qsd() { # SOCKET LIMITS-AS-JSON EXPORT...
    local socket=$1 limits=$2 arguments=()
    shift 2
    for name in "$@"; do
        arguments+=(--blockdev "throttle,node-name=t-$name,throttle-group=group,file=null"
            --export "nbd,id=e-$name,node-name=t-$name,name=$name")
    done
    start_probed "nbd+unix:///$1?socket=$socket" "$socket" "$QSD" --object "{\"qom-type\":\"throttle-group\",\"id\":\"group\",\"limits\":$limits}" \
        --blockdev null-co,node-name=null,size=1073741824,read-zeroes=on --nbd-server "addr.type=unix,addr.path=$socket" "${arguments[@]}"
}
socket() { number=$((number + 1)); SOCK=$SCRATCH/limits-$number.sock; }
row() { # WHO ARGUMENTS-OF-THE-CLIENT...
    local who=$1
    shift
    client "$@" --who "$who" || status=1
}

rates() { # UNIT RATE SIZE DEPTH
    local key=iops-total qemu=iops-total
    [ "$1" = iops ] || { key=bps-total qemu=bps-total; }
    local arguments=(rate --unit "$1" --rate "$2" --size "$3" --depth "$4" --seconds "$seconds")
    socket
    start_probed "nbd+unix:///e?socket=$SOCK" "$SOCK" "$HEADWORKS" serve -U "$SOCK" "e=null:size=1G,$key=$2"
    row ours "${arguments[@]}" --socket "$SOCK" --judge
    stop_all
    if has "$QSD"; then
        socket
        qsd "$SOCK" "{\"$qemu\":$2}" e
        row qemu-storage-daemon "${arguments[@]}" --socket "$SOCK"
        stop_all
    fi
    if [ "$1" = bps ] && has nbdkit; then
        socket
        start_probed "nbd+unix:///e?socket=$SOCK" "$SOCK" nbdkit -f -U "$SOCK" --filter=rate null size=1G rate=$(($2 * 8))
        row nbdkit "${arguments[@]}" --socket "$SOCK"
        stop_all
    fi
}

bursts() { # UNIT RATE MAX LENGTH SIZE DEPTH
    local key=iops-total
    [ "$1" = iops ] || key=bps-total
    local arguments=(burst --unit "$1" --rate "$2" --max "$3" --length "$4" --size "$5" --depth "$6")
    socket
    start_probed "nbd+unix:///e?socket=$SOCK" "$SOCK" "$HEADWORKS" serve -U "$SOCK" "e=null:size=1G,$key=$2,$key-max=$3,$key-max-length=$4s"
    row ours "${arguments[@]}" --socket "$SOCK" --judge
    stop_all
    if has "$QSD"; then
        socket
        qsd "$SOCK" "{\"$key\":$2,\"$key-max\":$3,\"$key-max-length\":$4}" e
        row qemu-storage-daemon "${arguments[@]}" --socket "$SOCK"
        stop_all
    fi
}

shares() {
    local arguments=(share --rate 20000000 --seconds "$seconds")
    socket
    start_probed "nbd+unix:///heavy?socket=$SOCK" "$SOCK" "$HEADWORKS" serve -U "$SOCK" --limit bps-total=20000000 heavy=null:size=1G light=null:size=1G
    row ours "${arguments[@]}" --socket "$SOCK" --judge
    stop_all
    socket
    start_probed "nbd+unix:///heavy?socket=$SOCK" "$SOCK" "$HEADWORKS" serve -U "$SOCK" --tenant acme,bps-total=20000000 \
        heavy=null:size=1G,tenant=acme light=null:size=1G,tenant=acme
    row "ours, a tenant" "${arguments[@]}" --socket "$SOCK" --judge
    stop_all
    if has "$QSD"; then
        socket
        qsd "$SOCK" '{"bps-total":20000000}' heavy light
        row qemu-storage-daemon "${arguments[@]}" --socket "$SOCK"
        stop_all
    fi
}

if [ -z "$only" ] || [ "$only" = rate ]; then
    rates iops 100 4096 32
    rates iops 1000 4096 32
    rates iops 10000 4096 64
    rates bps 10485760 16384 16
    rates bps 104857600 65536 32
fi
if [ -z "$only" ] || [ "$only" = burst ]; then
    bursts iops 100 2000 5 4096 64
    bursts bps 10485760 104857600 3 65536 32
fi
if [ -z "$only" ] || [ "$only" = share ]; then
    shares
fi
exit $status
