#!/usr/bin/env bash
# matrix: once
# The action for GitHub (.github/actions/crashtest): its scripts with the variables of a runner, a release that is fetched, and its form.
. "$(dirname "$0")/lib.sh"

ACTION=$HERE/../../.github/actions/crashtest
export RUNNER_TEMP=$DIR/runner GITHUB_PATH=$DIR/path GITHUB_OUTPUT=$DIR/output GITHUB_STEP_SUMMARY=$DIR/summary
unset GITHUB_ACTIONS
mkdir -p "$RUNNER_TEMP"
install_program() { : >"$GITHUB_PATH" && env "$@" bash "$ACTION/install.sh" >"$DIR/said" 2>&1; }
refuses() { # PATTERN VARIABLES...
    install_program "${@:2}" && return 1
    grep -Eq "^::error title=headworks::.*$1" "$DIR/said" || { cat "$DIR/said"; return 1; }
}
# A release as scripts/packages and the workflow of releases make it.
make_release() {
    local name
    name=headworks-1.2.3-$(uname -m)-linux-static
    mkdir -p "$DIR/releases/v1.2.3" "$DIR/tree/$name"
    printf '#!/bin/sh\necho headworks 1.2.3\n' >"$DIR/tree/$name/headworks"
    chmod +x "$DIR/tree/$name/headworks"
    tar -C "$DIR/tree" -czf "$DIR/releases/v1.2.3/$name.tar.gz" "$name" && (cd "$DIR/releases/v1.2.3" && sha256sum ./*.tar.gz >SHA256SUMS)
}
make_release
check "a release is fetched, compared with its sum and put into the path" sh -c '
RELEASES="file://$1/releases" ACTION_REF=v1.2.3 bash "$2/install.sh" && "$(tail -n 1 "$GITHUB_PATH")/headworks" | grep -qx "headworks 1.2.3"' - "$DIR" "$ACTION"
check "a version that is no release is refused" refuses 'v9.9.9/.* cannot be fetched' "RELEASES=file://$DIR/releases" VERSION=9.9.9
check "so is a branch without a version" refuses 'which release' "RELEASES=file://$DIR/releases" ACTION_REF=main
for file in "$DIR"/releases/v1.2.3/*.tar.gz; do echo more >>"$file"; done
check "and a file that is another one" refuses 'is not the file of the release' "RELEASES=file://$DIR/releases" VERSION=1.2.3
check "a program that is there is taken" install_program "PROGRAM=$HEADWORKS"

if ! "$HEADWORKS" crashtest --run 'echo 1 >"$dir/a"; sync "$dir/a" "$dir"; echo done' --check 'read -r line || exit 0; [ -e "$dir/a" ]' --cuts 5 >/dev/null 2>"$DIR/err" && grep -q 'can be mounted' "$DIR/err"; then
    skip "a test in the action" "no directory can be mounted here"
else
    PATH=$(tail -n 1 "$GITHUB_PATH"):$PATH
    cat >"$DIR/save.sh" <<'SAVE'
for number in 1 2 3; do
    printf 'version %s\n' $number >"$dir/config.tmp"
    [ "$1" != careful ] || sync "$dir/config.tmp"
    mv "$dir/config.tmp" "$dir/config"
    [ "$1" != careful ] || sync "$dir"
    echo $number
done
SAVE
    cat >"$DIR/verify.sh" <<'VERIFY'
promised=$(tail -n 1)
[ -n "$promised" ] || exit 0
read -r word found <"$dir/config" && [ "$word" = version ] && [ "$found" -ge "$promised" ] || { echo "version $promised was promised"; exit 1; }
VERIFY
    runs() { # LOAD: runs the step of the test
        : >"$GITHUB_OUTPUT"
        : >"$GITHUB_STEP_SUMMARY"
        (cd "$DIR" && RUN="sh save.sh $1; : \$dir" CHECK='sh verify.sh' ARGUMENTS='--model journal --cuts "200"' bash "$ACTION/test.sh" >"$DIR/said" 2>&1)
    }
    fails() {
        runs careless
        [ $? -eq 1 ] && grep -q 'was not durable' "$GITHUB_STEP_SUMMARY" && grep -q '<failure' "$(sed -n 's/^report=//p' "$GITHUB_OUTPUT")" &&
            [ -s "$(sed -n 's/^record=//p' "$GITHUB_OUTPUT")" ]
    }
    check "a careless program fails the job: summary, report and record" fails
    check "a careful one passes" runs careful
fi
check "inputs of the scripts and of the guide are those of the action" "$PYTHON" -c '
import re, sys
text = open(sys.argv[1] + "/action.yml").read()
inputs = set(re.findall(r"^  ([a-z-]+):$", text.split("outputs:")[0], re.M))
assert inputs == set(re.findall(r"inputs\.([a-z-]+)", text)), inputs
for script in re.findall(r"GITHUB_ACTION_PATH/([a-z]+\.sh)", text):
    open(sys.argv[1] + "/" + script)
guide = open(sys.argv[2]).read()
example = guide.split("```yaml\n")[1].split("```")[0]
assert set(re.findall(r"^          ([a-z-]+): ", example, re.M)) <= inputs, example
table = guide.split("| input | value")[1].split("Outputs:")[0]
assert inputs == set(re.findall(r"`([a-z-]+)`", "".join(row.split("|")[1] for row in table.splitlines() if row.startswith("| `")))), table' "$ACTION" "$HERE/../../docs/guide/crashtest.md"
exit $BAD
