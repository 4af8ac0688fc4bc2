#!/usr/bin/env bash
# matrix: engine
# The front door: 16 sequential reads in one write() are one request of 64 KiB, on real and on simulated devices.
. "$(dirname "$0")/lib.sh"

pseudo_random 32 front >"$DIR/filled"
fill() { # IMAGE
    cp "$DIR/filled" "$1"
}
proof() { # WHAT SPEC
    echo "# $1"
    serve --control "$CONTROL" "$2"
    case $2 in
    *mem:*) check "the memory is filled" nbdcopy "$DIR/filled" "$URI" ;;
    esac
    script front_door.py "$URI" "$CONTROL" "$SERVER" "$DIR/filled"
    stop_server
}

fill "$IMAGES/front.img"
proof "file" "file:path=$IMAGES/front.img"
proof "memory" "mem:size=32M"
proof "delay over a file" "delay:read=1ms,of=file:path=$IMAGES/front.img"
check "reading has changed nothing" cmp "$DIR/filled" "$IMAGES/front.img"
