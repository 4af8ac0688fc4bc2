#!/usr/bin/env bash
# Puts a headworks of a release, or one that is there, into the search path of the steps that follow.
#
# From the workflow: PROGRAM, VERSION, ACTION_REF (of the action, v0.2.0), ACTION_REPOSITORY (OWNER/headworks).
# From the runner: RUNNER_TEMP, GITHUB_PATH. RELEASES is where releases are, for tests.
set -euo pipefail

die() {
    echo "::error title=headworks::$*"
    exit 1
}

bin=$RUNNER_TEMP/headworks/bin
mkdir -p "$bin"
if [ -n "${PROGRAM:-}" ]; then
    [ -x "$PROGRAM" ] || die "there is no program $PROGRAM"
    ln -sf "$(realpath "$PROGRAM")" "$bin/headworks"
else
    version=${VERSION:-${ACTION_REF:-}}
    version=${version#v}
    [[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || die "which release? The action is not used by a tag, so give it version: 0.2.0"
    releases=${RELEASES:-https://github.com/${ACTION_REPOSITORY:?}/releases/download}
    archive=headworks-$version-$(uname -m)-linux-static.tar.gz
    cd "$RUNNER_TEMP/headworks"
    for file in "$archive" SHA256SUMS; do
        curl --fail --silent --show-error --location --retry 3 --max-time 300 -o "$file" "$releases/v$version/$file" ||
            die "$releases/v$version/$file cannot be fetched"
    done
    # The sums name files as ./FILE.
    sed -n "s|  \./$archive\$|  $archive|p; /  $archive\$/p" SHA256SUMS | head -n 1 | sha256sum --check --status - ||
        die "$archive is not the file of the release"
    tar -xzf "$archive"
    install -m 755 "${archive%.tar.gz}/headworks" "$bin/headworks"
fi
# A mount without root needs fusermount3.
if [ "$(id -u)" -ne 0 ] && ! command -v fusermount3 >/dev/null && command -v apt-get >/dev/null; then
    sudo apt-get -q -q update && sudo apt-get -q -q install -y --no-install-recommends fuse3 || echo "::warning title=headworks::fuse3 cannot be installed"
fi
echo "$bin" >>"$GITHUB_PATH"
"$bin/headworks" --version
