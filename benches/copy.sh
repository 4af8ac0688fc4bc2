#!/usr/bin/env bash
# Methods of copying and zeroing by size and temperature, in turn in one run: the table of crates/headworks/src/memory/copy.rs.
#
#   benches/copy.sh [--cpu 1]
#
# Takes 1 GiB of memory and about 20 s.
. "$(dirname "$0")/lib.sh"

cpu=$(($(nproc) - 1))
while [ $# -gt 0 ]; do
    case $1 in
    --cpu) cpu=$2 && shift ;;
    *) usage ;;
    esac
    shift
done

machine
cd "$(dirname "$0")/.." && taskset -c "$cpu" cargo bench -q --locked -p headworks --bench copy
