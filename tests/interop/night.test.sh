#!/usr/bin/env bash
# matrix: once
# seconds: 12
# Faults as an administrator meets them at night: why, top --batch, the status page and the metrics name each while it lasts.
. "$(dirname "$0")/lib.sh"
script night.py
