#!/usr/bin/env bash
# What a request costs in counts that do not depend on the machine's load, each against a ceiling: instructions, system calls, copied bytes.
#
#   benches/counts.sh [--renew | --annotate] [NAME...]
#
#   null-*      instructions of a read of 4 KiB in process (`headworks-bench --device null`), as benches/instructions.sh counts them
#   receive-*   instructions of a request of 4 KiB and its reply in one connection: 64 requests in a socket pair become 64 bios and 64 replies
#               (`headworks-lab run receive-path`); no shard
#   look        million instructions of the server for `ctl why`, `top --batch 1` and a scrape together, with 20 exports of two tenants: what
#               a watcher costs each second (benches/looks.sh has its part of the requests)
#   calls-*     system calls of the server for a request over NBD, at depth 1 (benches/calls.py)
#   sends-tcp-*, receives-tcp-*  those that send and receive, for a request over TCP to this machine, and for 32 of 4 KiB that come at once
#   handle-read, c-api-read  instructions of a read of 4 KiB of a null device at depth 32, in batches of 8: through a handle of the library
#               (`headworks-lab run handle`), and through the C API with the same loop (benches/c_api.c), where libheadworks_c.so is built
#   c-api-ratio the second over the first
#   copies-*    bytes that the program copies for each byte of a request: in one connection, and in the page cache (`run cached`)
#
# All by valgrind, which needs no counters of the processor; the kernel's instructions and copies are not counted. Two runs of different
# length: the difference of their counts over that of their requests. A count is exact for one binary; with the profile dist it follows
# the code alone. Other profiles cut a crate in units, whose borders move with any change.
# Exit 1: more than the ceiling in benches/counts.tsv and its tolerance (1 % of instructions, 3 % of those of a look, whose seconds differ; twice that with another compiler than the ceiling's). A
# change that needs more says why in its commit, and renews the ceiling (--renew); so does one that needs less, or the next one could lose that
# again. A goal, which is one of the profile dist, that is not met is MISSED; that fails
# nothing.
# BIN=folder counts the programs of another one: its name is the profile's name.
set -u -o pipefail
cd "$(dirname "$0")/.." || exit 1
BIN=${BIN:-target/release}
ceilings=benches/counts.tsv
programs=(headworks headworks-bench headworks-lab)
profile=$(basename "$BIN")
compiler=$(rustc --version | cut -d' ' -f2)
for program in "${programs[@]}"; do
    [ -x "$BIN/$program" ] || { echo "counts: error: there is no $BIN/$program: make build lab" >&2; exit 1; }
done
for tool in valgrind curl nbdinfo; do
    command -v $tool >/dev/null || { echo "counts: error: there is no $tool: scripts/setup test" >&2; exit 1; }
done
renew='' annotate='' wanted=()
for word; do
    case $word in
    --renew) renew=yes ;;
    --annotate) annotate=yes ;;
    -*)
        echo "usage: benches/counts.sh [--renew | --annotate] [NAME...]" >&2
        exit 2
        ;;
    *) wanted+=("$word") ;;
    esac
done
scratch=$(mktemp -d /tmp/hw-counts.XXXXXX) || exit 1
server=
trap '[ -z "$server" ] || kill -9 "$server" 2>/dev/null; rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM
# Valgrind reads the lines of a program before it runs it.
for program in "${programs[@]}"; do
    [ -z "$annotate" ] || { ln -s "$PWD/$BIN/$program" "$scratch/" && continue; }
    strip --strip-debug -o "$scratch/$program" "$BIN/$program" || exit 1
done

# Copies by the same instructions on every machine: not those that count by the byte, and none that only some processors have.
export GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX2,-ERMS,-FSRM,-AVX_Fast_Unaligned_Load,-Prefer_ERMS,-Prefer_FSRM

callgrind=(valgrind --tool=callgrind "--callgrind-out-file=$scratch/callgrind")
copies=(valgrind --tool=dhat --mode=copy --dhat-out-file=/dev/null)

total() { sed -n 's/.*Collected : //p; s/^==[0-9]*== Total: *\([0-9,]*\) bytes in.*/\1/p' "$1" | tr -d ,; }

# Prints the count of a program's run.
count_run() { # valgrind... PROGRAM ARGUMENTS...
    "$@" >"$scratch/run" 2>"$scratch/valgrind" || { cat "$scratch/run" "$scratch/valgrind" >&2; return 1; }
    total "$scratch/valgrind"
}

# Reads a little of two exports, so that there is something to see.
read_some() { # SOCKET
    python3 -B -c 'import sys
sys.path.insert(0, "tests/interop")
import rawnbd
for export in (b"e0", b"e1"):
    client = rawnbd.Raw("nbd+unix:///?socket=" + sys.argv[1], 60).go(export)[0]
    for block in range(100):
        client.read(block << 12, 4096)' "$1"
}

# Prints the count of the server with this many looks, from its start to its end.
count_looks() { # LOOKS
    local specs=() n socket=$scratch/looks.$1 limit=$((SECONDS + 60))
    for ((n = 0; n < 20; n++)); do specs+=("e$n=null:size=1G,tenant=t$((n % 2))"); done
    "${callgrind[@]}" "$scratch/headworks" serve --cache 0 --shards 1 --engine threads --poll-us 0 --metrics 127.0.0.1:0 --tenant t0 --tenant t1 \
        --nr-requests 64 -U "$socket" --control "$socket.ctl" "${specs[@]}" >"$socket.log" 2>&1 &
    server=$!
    until nbdinfo --size "nbd+unix:///e0?socket=$socket" >/dev/null 2>&1; do
        kill -0 "$server" 2>/dev/null && [ $SECONDS -lt $limit ] || { cat "$socket.log" >&2; return 1; }
        sleep 0.05
    done
    read_some "$socket" || return 1
    for ((n = 0; n < $1; n++)); do
        "$BIN/headworks" ctl "$socket.ctl" why && "$BIN/headworks" top "$socket.ctl" --batch 1 &&
            curl -sf "$(sed -n 's/^metrics: //p' "$socket.log")" ||
            { echo "counts: error: look $n of $1 was not answered" >&2; cat "$socket.log" >&2; return 1; }
    done >"$scratch/looked"
    kill -TERM "$server" && wait "$server"
    server=
    total "$socket.log"
}

# Prints the difference of two counts over a number.
over() { awk -v a="$1" -v b="$2" -v n="$3" -v format="%.${4:-1}f" 'BEGIN { printf format, (b - a) / n }'; }

status=0 lines=()
declare -A counted=()
is_wanted() { [ ${#wanted[@]} -eq 0 ] || [[ " ${wanted[*]} " == *" $1 "* ]]; }
# True when a figure is above its ceiling and tolerance. It is then counted once more, and the lesser counts: how threads meet depends on the
# load beside them. What costs more costs it both times.
is_over() { # NAME FIGURE TOLERANCE
    awk -F '\t' -v p="$profile" -v n="$1" -v f="$2" -v more="$3" \
        '$1 == p && $2 == n && f > $3 * (100 + more) / 100 { over = 1 } END { exit !over }' $ceilings
}
least() { awk -v a="$1" -v b="$2" 'BEGIN { print (a + 0 < b + 0) ? a : b }'; }

# Says what a figure is worth.
verdict() { # NAME FIGURE UNIT TOLERANCE
    local name=$1 figure=$2 unit=$3 more=$4 most goal of verdict
    counted[$name]=$figure
    IFS=$'\t' read -r most goal of < <(awk -F '\t' -v p="$profile" -v n="$name" '$1 == p && $2 == n { print $3 "\t" $4 "\t" $5 }' $ceilings)
    lines+=("$profile"$'\t'"$name"$'\t'"$figure"$'\t'"${goal:--}"$'\t'"$compiler")
    if [ -z "${most:-}" ]; then
        verdict="FAILED: $ceilings has no line for the profile $profile"
    else
        [ "$of" = "$compiler" ] || more=$((2 * more))
        verdict=$(awk -v f="$figure" -v m="$most" -v more="$more" \
            'BEGIN { print (f > m * (100 + more) / 100) ? "FAILED" : (f < m * (99.9 - more) / 100) ? "ok, renew the ceiling" : "ok" }')
        verdict+=", ceiling $most + $more % of rustc $of"
        [ "$goal" = - ] || verdict+=$(awk -v f="$figure" -v g="$goal" 'BEGIN { print ", goal " g (f > g * 1.01 ? ": MISSED" : ": met") }')
    fi
    printf '%-24s %9s %-34s %s\n' "$name" "$figure" "$unit" "$verdict"
    [ "${verdict#FAILED}" = "$verdict" ] || status=1
}

# Counts two runs of a program that differ in one number.
figure() { # NAME UNIT TOLERANCE FEW MANY OVER DIGITS COMMAND..., with @ for the number
    local name=$1 unit=$2 tolerance=$3 few=$4 many=$5 each=$6 digits=$7 short long found again
    shift 7
    is_wanted "$name" || return 0
    counted_once() { short=$(count_run "${@/#@/$few}") && long=$(count_run "${@/#@/$many}") && over "$short" "$long" "$each" "$digits"; }
    found=$(counted_once "$@") || exit 1
    if is_over "$name" "$found" "$tolerance"; then again=$(counted_once "$@") && found=$(least "$found" "$again") || exit 1; fi
    verdict "$name" "$found" "$unit" "$tolerance"
    [ -z "$annotate" ] || [[ $unit != instructions* ]] || callgrind_annotate "$scratch/callgrind" | head -n 60
}

for scheduler in none mq-deadline; do
    figure null-$scheduler "instructions a read in process" 1 10000 40000 30000 1 \
        "${callgrind[@]}" "$scratch/headworks-bench" --device null:size=1G --rw randread --bs 4k --iodepth 32 --scheduler $scheduler --ios @
done
lab=("$scratch/headworks-lab" run)
for op in read write; do
    figure receive-$op "instructions a $op of 4 KiB" 1 100 300 $((200 * 64)) 1 "${callgrind[@]}" "${lab[@]}" receive-path --op $op --rounds @
    figure copies-$op "bytes for a byte, $op of 4 KiB" 1 100 300 $((200 * 64 * 4096)) 3 "${copies[@]}" "${lab[@]}" receive-path --op $op --rounds @
done
if is_wanted c-api; then
    if [ ! -e "$BIN/libheadworks_c.so" ]; then
        echo "c-api: not counted: there is no $BIN/libheadworks_c.so"
    else
        strip --strip-debug -o "$scratch/libheadworks_c.so" "$BIN/libheadworks_c.so" &&
            cc -std=gnu11 -O2 -Icrates/headworks-c/include benches/c_api.c -o "$scratch/c_api" -L"$scratch" -lheadworks_c "-Wl,-rpath,$scratch" || exit 1
        # All three by one name: the ratio needs both.
        wanted+=(${wanted[0]:+handle-read c-api-read})
        figure handle-read "instructions a read by a handle" 1 10000 40000 30000 1 "${callgrind[@]}" "${lab[@]}" handle --ios @
        figure c-api-read "instructions a read by the C API" 1 10000 40000 30000 1 "${callgrind[@]}" "$scratch/c_api" null:size=1G @ 32
        verdict c-api-ratio "$(awk -v a="${counted[handle-read]}" -v b="${counted[c-api-read]}" 'BEGIN { printf "%.3f", b / a }')" \
            "times those of the handle" 1
    fi
fi
if is_wanted look; then
    # The first one finds what it needs for the others. Several, since a start differs by as much as 2 % of a look.
    looks() {
        local short long
        short=$(count_looks 1) && long=$(count_looks 7) && over "$short" "$long" 6e6 2
    }
    looked=$(looks) || exit 1
    if is_over look "$looked" 3; then again=$(looks) && looked=$(least "$looked" "$again") || exit 1; fi
    verdict look "$looked" "million instructions" 3
fi
if [[ ${#wanted[@]} -eq 0 || ${wanted[*]} == *calls-* || ${wanted[*]} == *-tcp-* ]]; then
    # How many pieces a MiB takes depends on how much of it the other side has taken meanwhile: 27 to 34 were seen for 33.
    of_calls() { [[ $1 == *-1m ]] && echo 10 || echo 0; }
    calls() { python3 benches/calls.py "$scratch/headworks" "$scratch"; }
    calls >"$scratch/calls" || exit 1
    while read -r name found; do
        ! is_wanted "$name" || ! is_over "$name" "$found" "$(of_calls "$name")" || once_more=yes
    done <"$scratch/calls"
    [ -z "${once_more:-}" ] || calls >"$scratch/calls.again" || exit 1
    while read -r name found; do
        [ -z "${once_more:-}" ] || found=$(least "$found" "$(awk -v n="$name" '$1 == n { print $2 }' "$scratch/calls.again")")
        ! is_wanted "$name" || verdict "$name" "$found" "system calls" "$(of_calls "$name")"
    done <"$scratch/calls"
fi
if [ -n "$renew" ]; then
    {
        grep '^#' $ceilings
        {
            # The figures of the others stay.
            names=$(printf '%s\n' "${lines[@]}" | cut -f 2)
            awk -F '\t' -v p="$profile" -v names=$'\n'"$names"$'\n' '!/^#/ && !($1 == p && index(names, "\n" $2 "\n"))' $ceilings
            printf '%s\n' "${lines[@]}"
        } | sort -s -t $'\t' -k 1,1
    } >"$scratch/ceilings" && cp "$scratch/ceilings" $ceilings
    exit
fi
exit $status
