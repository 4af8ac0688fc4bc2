#!/usr/bin/env bash
# Headworks, nbdkit and qemu-nbd side by side in one run, under one lean client (`headworks bench --uri`).
#
#   benches/nbd-peers.sh [--rounds 3] [--runtime 1s] [--size 1024] [--group null|mem|file|cache|tls|qcow2|qcow2-disk]... [--cell RW-BS-DEPTH[xCONNECTIONS]]... [--tcp] [--json FILE] [--before BINARY]
#
# A figure of another hour or another machine says nothing: ratios of one run do. So every round runs every server
# once, in turn (A B C A B C), and the medians are compared. Where server and client run decides more than
# what the server does: each cell is measured with both on one CPU (same), on two (other), on two with a client that
# polls (polled), and wherever the kernel puts them (unpinned); every server is judged by its own best placement. Exports are filled first: holes move no data.
# --tcp: over TCP to this machine, not over a unix socket. A cell of many connections (randread-4k-1x64) has the depth in each; the client has a thread for each of the
# first 64, and one for each CPU beyond.
# --size is in MiB. --before is another binary of ours, beside ours in the group tls.
# limit is no peer: the least that a server can do for the same requests (benches/limit.c), one send a reply or one for all that came together.
# Our share of the better one is what is left to gain.
. "$(dirname "$0")/lib.sh"

rounds=3 runtime=1s size=1024 groups=() cells=() json= before= tls= tcp=
while [ $# -gt 0 ]; do
    case $1 in
    --tcp) tcp=yes && shift && continue ;;
    --rounds) rounds=$2 ;;
    --runtime) runtime=$2 ;;
    --size) size=$2 ;;
    --group) groups+=("$2") ;;
    --cell) cells+=("$2") ;;
    --json) json=$2 ;;
    --before) before=$2 ;;
    *) usage ;;
    esac
    shift 2
done
[ ${#groups[@]} -gt 0 ] || groups=(null mem file cache)
[ ${#cells[@]} -gt 0 ] || cells=(randread-4k-1 randwrite-4k-1 randread-4k-32 randwrite-4k-32
    randread-64k-16 randwrite-64k-16 randread-1M-4 randwrite-1M-4)
transport="a unix socket"
[ -z "$tcp" ] || transport=TCP
placements=(same unpinned)
[ "$(nproc)" -lt 2 ] || placements=(same other polled unpinned)

in_memory=$(mktemp -d /dev/shm/headworks-bench.XXXXXX) || exit 1
on_disk=$(mktemp -d "$root/target/bench.XXXXXX") || exit 1
LEFTOVERS+=("$in_memory" "$on_disk")
declare -A PID URI
servers=()
if command -v cc >/dev/null; then cc -O2 -pthread -o "$SCRATCH/limit" "$root/benches/limit.c" || exit 1; fi

peer() { # NAME COMMAND with SOCK for its socket
    local socket=$SCRATCH/${#servers[@]}.sock port=$((11000 + ${#servers[@]})) word command=()
    URI[$1]="nbd${tls:+s}+unix:///?socket=$socket${tls:+&tls-certificates=$tls}"
    [ -z "$tcp" ] || URI[$1]="nbd${tls:+s}://127.0.0.1:$port/${tls:+?tls-certificates=$tls}"
    for word in "${@:2}"; do
        case ${tcp:+$2}:$word in
        "$HEADWORKS:-U" | nbdkit:-U) command+=(-i 127.0.0.1 -p "$port") ;;
        "$SCRATCH/limit:$socket") command+=("$port") ;;
        qemu-nbd:-k) command+=(-b 127.0.0.1 -p "$port") ;;
        ?*:"$socket") ;;
        *) command+=("$word") ;;
        esac
    done
    start_probed "${URI[$1]}" "$socket" "${command[@]}"
    servers+=("$1")
    PID[$1]=$STARTED
}

# The socket that the next peer will get.
next_socket() { echo "$SCRATCH/${#servers[@]}.sock"; }

limits() { # BYTES [null]
    local name
    [ -x "$SCRATCH/limit" ] || return 0
    for name in limit limit-batch; do peer $name "$SCRATCH/limit" "$(next_socket)" "$1" "${name#limit-}" ${2:+"$2"}; done
}

image() { # NAME: a filled image in memory
    fill "$in_memory/$1" "$size" && echo "$in_memory/$1"
}

start_group() { # GROUP
    servers=() tls=
    rm -f "$SCRATCH"/*.sock
    case $1 in
    null)
        peer headworks "$HEADWORKS" serve --cache 0 -U "$(next_socket)" null:size=1T
        peer headworks-poll-0 "$HEADWORKS" serve --cache 0 --poll-us 0 -U "$(next_socket)" null:size=1T
        peer nbdkit nbdkit -f -U "$(next_socket)" null 1T
        peer nbdkit-t1 nbdkit -f -t 1 -U "$(next_socket)" null 1T
        peer qemu-nbd qemu-nbd -t -e 1100 -k "$(next_socket)" --image-opts driver=null-co,size=1T
        limits $((1 << 40)) null
        ;;
    mem)
        peer headworks "$HEADWORKS" serve --cache 0 -U "$(next_socket)" "mem:size=${size}M"
        peer headworks-poll-0 "$HEADWORKS" serve --cache 0 --poll-us 0 -U "$(next_socket)" "mem:size=${size}M"
        peer nbdkit nbdkit -f -U "$(next_socket)" memory "${size}M"
        peer nbdkit-t1 nbdkit -f -t 1 -U "$(next_socket)" memory "${size}M"
        local filled name
        filled=$(image fill) || exit 1
        for name in "${servers[@]}"; do nbdcopy "$filled" "${URI[$name]}" || exit 1; done
        rm -f "$filled"
        limits $((size << 20))
        ;;
    file)
        peer headworks "$HEADWORKS" serve --cache 0 -U "$(next_socket)" "file:path=$(image 0)"
        peer headworks-poll-0 "$HEADWORKS" serve --cache 0 --poll-us 0 -U "$(next_socket)" "file:path=$(image 1)"
        peer nbdkit nbdkit -f -U "$(next_socket)" file "$(image 2)"
        peer nbdkit-t1 nbdkit -f -t 1 -U "$(next_socket)" file "$(image 3)"
        peer qemu-nbd-writeback qemu-nbd -t -e 1100 -f raw --cache=writeback --aio=threads -k "$(next_socket)" "$(image 4)"
        peer qemu-nbd-none-native qemu-nbd -t -e 1100 -f raw --cache=none --aio=native -k "$(next_socket)" "$(image 5)"
        peer qemu-nbd-none-uring qemu-nbd -t -e 1100 -f raw --cache=none --aio=io_uring -k "$(next_socket)" "$(image 6)"
        limits $((size << 20))
        ;;
    cache)
        # A cache that holds all of the export, over a file in memory. All of it is read once, and all of it may be dirty, as in
        # the kernel's cache below qemu-nbd: what is measured is hits.
        local cached=(--cache "$((size * 5 / 2))M" --set vm/dirty_ratio=90 --set vm/dirty_background_ratio=90) name
        cached+=(--set vm/dirty_writeback_centisecs=0)
        peer headworks "$HEADWORKS" serve "${cached[@]}" -U "$(next_socket)" "file:path=$(image 0)"
        peer headworks-poll-0 "$HEADWORKS" serve "${cached[@]}" --poll-us 0 -U "$(next_socket)" "file:path=$(image 1)"
        for name in "${servers[@]}"; do nbdcopy "${URI[$name]}" null: || exit 1; done
        local filled
        filled=$(image fill) || exit 1
        peer nbdkit-memory nbdkit -f -U "$(next_socket)" memory "${size}M"
        nbdcopy "$filled" "${URI[nbdkit-memory]}" || exit 1
        peer nbdkit-memory-t1 nbdkit -f -t 1 -U "$(next_socket)" memory "${size}M"
        nbdcopy "$filled" "${URI[nbdkit-memory-t1]}" || exit 1
        peer nbdkit-file nbdkit -f -U "$(next_socket)" file "$filled"
        peer qemu-nbd-writeback qemu-nbd -t -e 1100 -f raw --cache=writeback --aio=threads -k "$(next_socket)" "$(image 2)"
        limits $((size << 20))
        ;;
    tls)
        # What TLS 1.3 with AES-256-GCM costs, without a disk: the null devices again. An RSA certificate of 2048 bits, no
        # client is verified.
        "$root/tests/interop/certificates.sh" "$SCRATCH/certificates" || exit 1
        tls=$SCRATCH/certificates/pki
        local required=(--tls require --tls-certificates "$tls")
        local credentials=tls-creds-x509,id=t,endpoint=server,dir=$tls,verify-peer=off
        peer headworks "$HEADWORKS" serve --cache 0 "${required[@]}" -U "$(next_socket)" null:size=1T
        peer headworks-poll-0 "$HEADWORKS" serve --cache 0 --poll-us 0 "${required[@]}" -U "$(next_socket)" null:size=1T
        [ -z "$before" ] || peer "before" "$before" serve --cache 0 "${required[@]}" -U "$(next_socket)" null:size=1T
        peer nbdkit nbdkit -f --tls=require --tls-certificates="$tls" -U "$(next_socket)" null 1T
        peer nbdkit-t1 nbdkit -f -t 1 --tls=require --tls-certificates="$tls" -U "$(next_socket)" null 1T
        peer qemu-nbd qemu-nbd -t -e 1100 -k "$(next_socket)" --object "$credentials" --tls-creds t --image-opts \
            driver=null-co,size=1T,read-zeroes=on
        ;;
    qcow2 | qcow2-disk)
        # One filled image, which all of them read: in memory through the kernel's cache, or on a disk with O_DIRECT.
        local folder=$in_memory ours=off modes=(writeback:threads)
        [ "$1" = qcow2 ] || { folder=$on_disk ours=on modes=(none:native none:io_uring); }
        fill "$folder/filled" "$size"
        qemu-img convert -O qcow2 "$folder/filled" "$folder/image.qcow2" && rm "$folder/filled" || exit 1
        local image=$folder/image.qcow2 mode
        peer headworks "$HEADWORKS" serve --cache 0 -U "$(next_socket)" "qcow2:path=$image,direct=$ours"
        peer headworks-poll-0 "$HEADWORKS" serve --cache 0 --poll-us 0 -U "$(next_socket)" "qcow2:path=$image,direct=$ours"
        for mode in "${modes[@]}"; do
            peer "qemu-nbd-${mode%:*}-${mode#*:}" qemu-nbd -t -r -e 1100 -f qcow2 --cache="${mode%:*}" --aio="${mode#*:}" \
                -k "$(next_socket)" "$image"
        done
        if nbdkit --dump-plugin file --filter=qcow2dec >/dev/null 2>&1; then
            peer nbdkit nbdkit -f -r -U "$(next_socket)" --filter=qcow2dec file "$image"
        else
            echo "nbd-peers: $(nbdkit --version) has no filter qcow2dec: not measured" >&2
        fi
        ;;
    *)
        echo "nbd-peers: error: there is no group $1" >&2
        exit 2
        ;;
    esac
}

last_cpu=$(($(nproc) - 1))
measure() { # GROUP CELL SERVER PLACEMENT
    local rw bs depth connections client poll=() before after iops total
    IFS=- read -r rw bs depth <<<"$2"
    IFS=x read -r depth connections <<<"$depth"
    # All threads of the server move; those that it starts later inherit.
    case $4 in
    same) taskset -apc 0 "${PID[$3]}" >/dev/null && client=0 ;;
    polled) taskset -apc 0 "${PID[$3]}" >/dev/null && client=1 && poll=(--poll) ;;
    other) taskset -apc 0 "${PID[$3]}" >/dev/null && client=1 ;;
    unpinned) taskset -apc "0-$last_cpu" "${PID[$3]}" >/dev/null && client=0-$last_cpu ;;
    esac
    before=$(cpu_ticks "${PID[$3]}")
    taskset -c "$client" "$HEADWORKS" bench --uri "${URI[$3]}" --overwrite --rw "$rw" --bs "$bs" --iodepth "$depth" --threads "${connections:-1}" \
        --runtime "$runtime" "${poll[@]}" --json >"$SCRATCH/run.json" || { echo "nbd-peers: error: the client failed on $3, $2, $4" >&2; exit 1; }
    after=$(cpu_ticks "${PID[$3]}")
    read -r iops total <<<"$(iops_of "$SCRATCH/run.json")"
    result "$1" "$2" "$3" "$4" "$iops" \
        "$(awk -v t=$((after - before)) -v hz="$(getconf CLK_TCK)" -v n="$total" 'BEGIN { print n ? t / hz * 1e6 / n : 0 }')"
}

machine
printf 'peers: %s; %s\n' "$(nbdkit --version)" "$(qemu-nbd --version | head -n 1)"
printf 'each figure: %s runs of %s, servers in turn, by %s; exports of %s MiB, filled; placements: %s\n' \
    "$rounds" "$runtime" "$transport" "$size" "${placements[*]}"
for group in "${groups[@]}"; do
    start_group "$group"
    for cell in "${cells[@]}"; do
        for ((round = 0; round < rounds; round++)); do
            for placement in "${placements[@]}"; do
                for server in "${servers[@]}"; do measure "$group" "$cell" "$server" "$placement"; done
            done
        done
    done
    stop_all
    rm -rf "${in_memory:?}"/* "${on_disk:?}"/*
done
echo >&2
python3 "$root/benches/ratios.py" "$RESULTS" --ours headworks ${json:+--json "$json"}
