#!/usr/bin/env bash
# matrix: once
# lock: uml
# seconds: 12
# A directory on a slow disk asks of its disk what ext4 asks of one: the same programs on ext4 in a user-mode Linux, whose disk counts its writes
# and flushes. Twenty operations of each; only counts are compared.
. "$(dirname "$0")/lib.sh"

GUEST_DOES="the commands of ext4"
. "$HERE/uml/boot.sh"

cd "$DIR" || exit 1
programs="append create overwrite sqlite"
mkdir begun && yes | head -c 128K >begun/old
for program in $programs; do
    "$HEADWORKS" dir slow --disk sata --from begun --json=summary.json -- "$PYTHON" "$HERE/dir.py" "$program" slow >/dev/null 2>err || {
        grep -q 'no directory can be mounted' err && without "$(cat err)"
        say "not ok" "$program on a slow disk" && quote <err
    }
    echo "$program $(jq -r '"\(.writes) \(.flushes)"' summary.json)" >>commands
done
run_guest "$HERE/uml/commands.sh" 120 "PROGRAMS='$programs'"

# The journal's places and a commit that comes by itself are those of the file system: 15 % and two commands may differ.
alike() { # PROGRAM
    join <(sort "$FOLDER/commands") <(sort commands) | awk -v program="$1" '
        function far(a, b) { return (a > b ? a - b : b - a) > 2 + 0.15 * a }
        $1 == program { print "ext4: " $2 " writes, " $3 " flushes; dir: " $4 " writes, " $5 " flushes"; found = !far($2, $4) && !far($3, $5) }
        END { exit !found }'
}
for program in $programs; do
    check "$program: as many writes and flushes as ext4" alike "$program"
done
exit $BAD
