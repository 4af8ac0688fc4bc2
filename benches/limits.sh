#!/usr/bin/env bash
# Limits beside those of qemu-storage-daemon (throttle groups) and nbdkit (the rate filter), in one run, under one client.
#
#   benches/limits.sh [--seconds 10] [--only rate|burst|share|many] [--ours]
#
# rate: every window of 1 s, the first too, against the limit; goal +-1 %. burst: what the burst admits and what follows. share: a
# light client beside a heavy one under one limit of 20 MB/s. many: 51 exports of a tenant, beside one without a limit. A row of ours
# prints MET or MISSED, one of a peer its figures alone; with --ours there are no peers.
# It needs a quiet machine: a stall of more than 4 ms of server or client is a window that is too low.
# nbdkit limits bytes only.
. "$(dirname "$0")/lib.sh"

seconds=10 only= ours=
while [ $# -gt 0 ]; do
    case $1 in
    --seconds) seconds=$2 && shift ;;
    --only) only=$2 && shift ;;
    --ours) ours=yes ;;
    *) usage ;;
    esac
    shift
done
machine
QSD=${QSD:-qemu-storage-daemon}
client() { python3 "$root/benches/limits.py" "$@"; }
has() { [ -z "$ours" ] && command -v "$1" >/dev/null 2>&1; }
wanted() { [ -z "$only" ] || [ "$only" = "$1" ]; }
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
row() { # SERVER ARGUMENTS-OF-THE-CLIENT...
    local label=$1
    shift
    client "$@" --server "$label" || status=1
}

ours() { # SERVER NAME SERVE-ARGUMENTS... -- CLIENT-ARGUMENTS...: starts a server of ours, and judges the client's row
    local label=$1 name=$2 server=()
    shift 2
    while [ "$1" != -- ]; do
        server+=("$1")
        shift
    done
    shift
    socket
    start_probed "nbd+unix:///$name?socket=$SOCK" "$SOCK" "$HEADWORKS" serve --cache 0 -U "$SOCK" "${server[@]}"
    row "$label" "$@" --socket "$SOCK" --judge
    stop_all
}
beside() { # LIMITS-AS-JSON CLIENT-ARGUMENTS... -- NAME...: the same of QEMU, if it is there
    local limits=$1 arguments=()
    shift
    while [ "$1" != -- ]; do
        arguments+=("$1")
        shift
    done
    shift
    has "$QSD" || return 0
    socket
    qsd "$SOCK" "$limits" "$@"
    row qemu-storage-daemon "${arguments[@]}" --socket "$SOCK"
    stop_all
}

rates() { # UNIT RATE SIZE DEPTH
    local key=iops-total
    [ "$1" = iops ] || key=bps-total
    local arguments=(rate --unit "$1" --rate "$2" --size "$3" --depth "$4" --seconds "$seconds")
    ours ours e "e=null:size=1G,$key=$2" -- "${arguments[@]}"
    beside "{\"$key\":$2}" "${arguments[@]}" -- e
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
    ours ours e "e=null:size=1G,$key=$2,$key-max=$3,$key-max-length=$4s" -- "${arguments[@]}"
    beside "{\"$key\":$2,\"$key-max\":$3,\"$key-max-length\":$4}" "${arguments[@]}" -- e
}

shares() {
    local arguments=(share --rate 20000000 --seconds "$seconds") acme=(--tenant acme,bps-total=20000000)
    ours ours heavy --limit bps-total=20000000 heavy=null:size=1G light=null:size=1G -- "${arguments[@]}"
    acme+=(heavy=null:size=1G,tenant=acme light=null:size=1G,tenant=acme)
    ours "ours, a tenant" heavy "${acme[@]}" -- "${arguments[@]}"
    ours "ours, two threads" heavy --shards 2 "${acme[@]}" -- "${arguments[@]}"
    beside '{"bps-total":20000000}' "${arguments[@]}" -- heavy light
}

many() {
    local exports=(--tenant acme,bps-total=20000000 free=null:size=1G heavy=null:size=1G,tenant=acme)
    for light in {0..49}; do exports+=("l$light=null:size=1G,tenant=acme"); done
    ours ours free "${exports[@]}" -- many --rate 20000000 --seconds "$seconds"
    ours "ours, two threads" free --shards 2 "${exports[@]}" -- many --rate 20000000 --seconds "$seconds"
}

if wanted rate; then
    rates iops 100 4096 32
    rates iops 1000 4096 32
    rates iops 10000 4096 64
    rates iops 100000 512 1024
    rates iops 1000000 512 1024
    rates bps 10485760 16384 16
    rates bps 104857600 65536 32
    rates bps 1073741824 65536 64
fi
if wanted burst; then
    bursts iops 100 2000 5 4096 64
    bursts bps 10485760 104857600 3 65536 32
fi
if wanted share; then shares; fi
if wanted many; then many; fi
exit $status
