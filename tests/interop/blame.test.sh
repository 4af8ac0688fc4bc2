#!/usr/bin/env bash
# matrix: once
# seconds: 49
# alone
# ctl why names what held the slow requests up: twenty staged cases with real disks, each with a victim, a guilty export and bystanders.
# 25 more, in virtual time, are unit tests of the server (control/tests/staged.rs).
. "$(dirname "$0")/lib.sh"
script blame.py
