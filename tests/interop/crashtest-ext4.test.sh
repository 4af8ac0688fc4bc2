#!/usr/bin/env bash
# matrix: once
# lock: uml
# seconds: 41
# `headworks crashtest` of a file system: ext4 in a user-mode Linux, whose kernel is the NBD client.
. "$(dirname "$0")/lib.sh"
GUEST_DOES="ext4 under power cuts"
. "$HERE/uml/boot.sh"
run_guest "$HERE/uml/crashtest.sh" 200
