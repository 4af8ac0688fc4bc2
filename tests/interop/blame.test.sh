#!/usr/bin/env bash
# matrix: once
# seconds: 49
# alone
# ctl why names what held the slow requests up: twenty staged cases, each with a victim, a guilty export and bystanders.
. "$(dirname "$0")/lib.sh"
script blame.py
