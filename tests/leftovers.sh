#!/usr/bin/env bash
# What the runners of tests source: nothing that a test started is left running when it has ended.

# Ends the processes that have MARK (NAME=VALUE) in the environment that they were started with, and prints a line for each. Those that are
# ending have SECONDS for it.
end_leftovers() { # MARK [SECONDS]
    local limit=$((SECONDS + ${2:-0})) left pid
    while :; do
        mapfile -t left < <(grep -lszxF "$1" /proc/[0-9]*/environ 2>/dev/null | grep -o '[0-9]*')
        [ ${#left[@]} -gt 0 ] || return 0
        [ $SECONDS -lt $limit ] || break
        sleep 0.05
    done
    for pid in "${left[@]}"; do
        tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | cut -c 1-200
        echo
        kill -9 "$pid" 2>/dev/null
    done | grep .
}
