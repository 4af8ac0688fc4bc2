#!/usr/bin/env bash
# Runs `headworks crashtest`, with the report in the summary of the job. Its exit status is that of the test.
#
# From the workflow: RUN, CHECK, SETUP, ARGUMENTS. From the runner: RUNNER_TEMP, GITHUB_OUTPUT, GITHUB_STEP_SUMMARY.
set -uo pipefail

results=$(mktemp -d "$RUNNER_TEMP/crashtest.XXXXXX") || exit 2
eval "arguments=(${ARGUMENTS:-})"
# shellcheck disable=SC2154 # `arguments` is set by the line above.
command=(headworks crashtest --run "${RUN:?}" --check "${CHECK:?}" --record "$results/crash.hwrec" --junit "$results/crashtest.xml" "${arguments[@]}")
[ -z "${SETUP:-}" ] || command+=(--setup "$SETUP")
"${command[@]}" | tee "$results/crashtest.txt"
status=${PIPESTATUS[0]}
{
    echo "results=$results"
    echo "report=$results/crashtest.xml"
    echo "record=$results/crash.hwrec"
} >>"$GITHUB_OUTPUT"
{
    echo "### Power cuts"
    echo '```'
    cat "$results/crashtest.txt"
    echo '```'
    [ "$status" -ne 1 ] || echo "The record is in the artifact of this job: \`headworks crashtest --again crash.hwrec\` explores it anywhere."
} >>"$GITHUB_STEP_SUMMARY"
exit "$status"
