#!/usr/bin/env bash
# Instructions for a request of 4 KiB and its reply in one connection of the server, by callgrind, against a ceiling.
#
#   benches/receive-path.sh [--renew | --annotate]
#
# 64 requests in a socket pair become 64 bios and 64 replies (`headworks-lab run receive-path`); no shard, no kernel. Two runs of different
# length: the difference of their instructions over that of their requests. The figure is exact for one binary; with the profile dist it follows
# the code alone. Other profiles cut a crate in units, whose borders move with any change (1374 to 1470
# instructions of a read): 2 % more than the ceiling pass there, as with another compiler than the ceiling's.
# Exit 1: above the ceiling in benches/receive-path.ceiling, a line for each profile and kind of request. A change that needs more says
# why in its commit, and renews the ceiling (--renew); so does one that needs less, or the next one could lose that again.
# LAB=path counts another binary: its folder is the profile's name.
set -u -o pipefail
cd "$(dirname "$0")/.." || exit 1
LAB=${LAB:-target/release/headworks-lab}
ceiling=benches/receive-path.ceiling
profile=$(basename "$(dirname "$LAB")")
compiler=$(rustc --version | cut -d' ' -f2)
[ -x "$LAB" ] || { echo "receive-path: error: there is no $LAB: make lab" >&2; exit 1; }
command -v valgrind >/dev/null || { echo "receive-path: error: there is no valgrind: scripts/setup test" >&2; exit 1; }
case ${1:-} in '' | --renew | --annotate) ;; *)
    echo "usage: benches/receive-path.sh [--renew | --annotate]" >&2
    exit 2
    ;;
esac
scratch=$(mktemp -d /tmp/hw-receive-path.XXXXXX) || exit 1
trap 'rm -rf "$scratch"' EXIT

# Copies by the same instructions on every machine: not those that count by the byte, and none that only some processors have.
export GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX2,-ERMS,-FSRM,-AVX_Fast_Unaligned_Load,-Prefer_ERMS,-Prefer_FSRM

count() { # OP ROUNDS: prints the instructions of a run
    valgrind --tool=callgrind --callgrind-out-file="$scratch/callgrind.$1.$2" "$LAB" run receive-path --op "$1" --rounds "$2" \
        >"$scratch/run" 2>"$scratch/valgrind" || { cat "$scratch/run" "$scratch/valgrind" >&2; return 1; }
    sed -n 's/.*Collected : //p' "$scratch/valgrind"
}

few=100 many=600 status=0 lines=()
for op in read write; do
    short=$(count $op $few) && long=$(count $op $many) || exit 1
    figure=$(awk -v a="$short" -v b="$long" -v n=$(((many - few) * 64)) 'BEGIN { printf "%.1f", (b - a) / n }')
    lines+=("$profile $op $figure $compiler")
    [ "${1:-}" = --annotate ] && callgrind_annotate "$scratch/callgrind.$op.$many" | head -n 60
    read -r most of < <(awk -v p="$profile" -v o=$op '$1 == p && $2 == o { print $3, $4 }' $ceiling)
    more=2
    [ "$profile" = dist ] && [ "${of:-}" = "$compiler" ] && more=0
    if [ -z "${most:-}" ]; then
        verdict="FAILED: $ceiling has no line for the profile $profile"
    else
        verdict=$(awk -v f="$figure" -v m="$most" -v more=$more \
            'BEGIN { print (f > m * (100 + more) / 100) ? "FAILED" : (f < m * (99.5 - more) / 100) ? "ok, renew the ceiling" : "ok" }')
        verdict+=", ceiling $most + $more % of rustc $of"
    fi
    echo "receive path, $op of 4 KiB, profile $profile: $figure instructions: $verdict"
    [ "${verdict#FAILED}" = "$verdict" ] || status=1
done
if [ "${1:-}" = --renew ]; then
    { grep -v "^$profile " $ceiling; printf '%s\n' "${lines[@]}"; } >"$scratch/ceiling" && cp "$scratch/ceiling" $ceiling
    exit
fi
exit $status
