#!/usr/bin/env bash
# matrix: engine
# Clients at their bounds, on a server that never polls: whoever is held must come back by itself.
. "$(dirname "$0")/lib.sh"

serve --poll-us 0 --requests 4 -r mem:size=64M
script held.py refused "$URI"
stop_server
serve --poll-us 0 --requests 1 mem:size=64M
script held.py one "$URI"
stop_server
serve --poll-us 0 --buffers 64M --stall-timeout 1s mem:size=64M
script held.py buffers "$URI"
stop_server
