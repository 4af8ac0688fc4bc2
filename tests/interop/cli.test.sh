#!/usr/bin/env bash
# matrix: once
# What the command says to those who mistype it: exit 2, and a first line that says what to do.
. "$(dirname "$0")/lib.sh"

refused() { # ARGUMENTS...
    timeout 10 "$HEADWORKS" "$@" >"$DIR/out" 2>"$DIR/err" </dev/null
    local status=$?
    echo "exit $status:"
    cat "$DIR/out" "$DIR/err"
    [ $status -eq 2 ] && head -n 1 "$DIR/err" | grep -q '^headworks\(-lab\)\?: error: .' && [ "$(grep -Ec 'headworks(-lab)?: error' "$DIR/err")" -eq 1 ]
}
names() { # WORD ARGUMENTS...: refused, and the first line names the word
    refused "${@:2}"
    local status=$?
    cat "$DIR/err"
    [ $status -eq 0 ] && head -n 1 "$DIR/err" | grep -qF -- "$1"
}

check "no command" names --help
one_line() { local said; said=$("$HEADWORKS" "${@:2}" 2>&1); echo "$said"; [ "$(wc -l <<<"$said")" -eq 1 ] && grep -q -- "$1" <<<"$said"; }
check "a command without its command: one line" one_line 'headworks ctl --help' ctl
check "keys before their type" one_line 'with keys it is error:cache=none,rate=30%,of=a.img' serve bad=cache=none,error:rate=30%,of=a.img
check "every missing image is named with its export" one_line 'export a: .*one.img.* export b: .*two.img' serve a=one.img b=two.img
check "an option of nbdkit" one_line 'there are no filters' serve --filter=cow file disk.img
check "a plugin of nbdkit" one_line 'a disk in memory is mem:size=1G' serve memory 1G
printf '[server]\ncache = "x"\nprot = 3\n[[export]]\nname = "a"\nweight = 0\nfile = { path = "/no/x.img", size = "5MB" }\n' >"$DIR/wrong.toml"
check "check tells mistakes of every kind in one round" bash -c '"$0" check "$1" 2>&1 | tee "$1.said"; for line in 2 3 6; do grep -q "wrong.toml:$line:" "$1.said" || exit 1; done' "$HEADWORKS" "$DIR/wrong.toml"
check "an unknown command" names sevre sevre
check "serve without a spec" refused serve
check "an unknown option" names --frobnicate serve --frobnicate mem:size=1M
check "an option without its value" refused serve mem:size=1M -U
check "a queue option that is none" names iosched/fifo_batch serve --set iosched/fifo=1 mem:size=1M
check "no time for a handshake" names handshake-timeout serve --handshake-timeout 0 mem:size=1M
check "no time for a stalled client" names stall-timeout serve --stall-timeout 0 mem:size=1M
check "a queue option beyond its range" names 1..=4096 serve --set nr_requests=0 mem:size=1M
check "a fact of the device as an option" names write_cache serve --set write_cache=0 mem:size=1M
check "an unknown type" names flie serve -U - flie:path=x
check "mem without a size" names size serve -U - mem:
check "null with a bad size" names 12Q serve -U - null:size=12Q
check "a size in kB, which could mean either" refused serve -U - mem:size=64kB
check "a specification that is not UTF-8" names 'd\xff.img` is not UTF-8' serve $'d\xff.img'
check "a name that NBD does not have" names '4096 bytes' serve "$(printf 'n%.0s' {1..5000})=mem:size=1M"
check "a negative size" refused serve -U - mem:size=-1M
check "a size beyond 64 bits" refused serve -U - null:size=99999999999E
check "an unknown key" names colour serve -U - mem:size=1M,colour=red
check "a key twice" refused serve -U - mem:size=1M,size=2M
check "file without a path" names path serve -U - file:
check "delay without of=" names of serve -U - delay:read=5ms
check "a bad time" names 5furlongs serve -U - delay:read=5furlongs,of=mem:size=1M
check "a bad rate" names 200% serve -U - error:rate=200%,of=mem:size=1M
check "an unknown errno" names EWHAT serve -U - error:rate=1%,errno=EWHAT,of=mem:size=1M
check "a weight out of range" names "1 to 10000" serve -U - mem:size=1M,weight=10001
check "an unknown class" names "rt, be and idle" serve -U - mem:size=1M,ioprio=best
check "a weight where no export is" names outermost serve -U - delay:read=1ms,of=mem:size=1M,weight=7
check "an unknown engine" names steam serve --engine steam -U - mem:size=1M
check "a bad port" names 99999 serve -p 99999 mem:size=1M
check "two exports of one name" names twice serve -U - twice=mem:size=1M twice=mem:size=2M
check "bench without a target" refused bench --rw read
check "bench with an unknown rw" names sideways bench --device null:size=1G --rw sideways
check "info without a URI" refused info
check "info with a URI of another world" refused info http://localhost/
check "ctl without a request" refused ctl "$DIR/none"
check "ctl with an unknown request" names frobnicate ctl "$DIR/none" frobnicate
check "ctl set without a value" names PATH=VALUE ctl "$DIR/none" set hw0/queue/nr_requests
unheard() { # STATUS ARGUMENTS...: it ends with that also if its error cannot be told
    "$HEADWORKS" "${@:2}" >/dev/full 2>/dev/full
    [ $? -eq "$1" ]
}
check "no command, and nobody to hear of it" unheard 2
check "an unknown option, likewise" unheard 2 serve --frobnicate
# An answer that is not all there is no answer.
cut_off() { # ARGUMENTS...
    "$HEADWORKS" "$@" >/dev/full 2>"$DIR/err"
    [ $? -eq 1 ] && grep -q '^headworks: error: cannot write to standard output: No space left' "$DIR/err"
}
check "a list on a full disk fails" cut_off disks
check "a completion script on a full disk fails" cut_off completions bash
check "a reader that leaves is no failure" bash -c 'set -o pipefail; "$1" disks | head -n 1' - "$HEADWORKS"
check "an unknown experiment" names nothing-of-this-name lab run nothing-of-this-name
check "an option of the lab that is none" names --frobnicate lab run smoke --frobnicate
mkdir "$DIR/alone" && cp "$HEADWORKS" "$DIR/alone/headworks"
for words in "lab run smoke" "bench --device null:size=1G --ios 1000"; do
    program=headworks-${words%% *}
    check "no $program beside the program or in PATH" bash -c '
        said=$(PATH= "$1" $2 2>&1)
        [ $? -eq 2 ] && [ "$(wc -l <<<"$said")" -eq 1 ] && [[ $said == "headworks: error: $3 is neither"*"make install"*" installs it" ]] || { echo "$said"; exit 1; }' - \
        "$DIR/alone/headworks" "$words" "$program"
done
check "its options are answered and described without it, too" bash -c 'PATH= "$1" bench --help && ! PATH= "$1" bench --rw sideways 2>&1 | grep make' - "$DIR/alone/headworks"
check "headworks-lab in PATH" bash -c '
    PATH=${2%/*}:$PATH "$1" lab --help | grep -q "^Usage: headworks-lab "' - "$DIR/alone/headworks" "$(realpath "$HEADWORKS")"
check "headworks-bench in PATH" bash -c '
    PATH=${2%/*}:$PATH "$1" bench --device null:size=1G --ios 1000' - "$DIR/alone/headworks" "$(realpath "$HEADWORKS")"

# What the world refuses is not the user's spelling: exit 1.
fails() {
    timeout 10 "$HEADWORKS" "$@" >"$DIR/out" 2>"$DIR/err" </dev/null
    local status=$?
    echo "exit $status:"
    cat "$DIR/out" "$DIR/err"
    [ $status -eq 1 ] && head -n 1 "$DIR/err" | grep -q '^headworks\(-lab\)\?: error: .'
}
check "an image that is not there" fails serve -U - "$DIR/none.img"
check "a folder for an image" fails serve -U - "$DIR"
check "nobody listens there" fails info "nbd+unix:///?socket=$DIR/none"
check "no control socket there" fails ctl "$DIR/none" get
check "nothing to replay" fails lab replay "$DIR/none"
truncate -s 1000 "$DIR/odd.img"
check "an image of no whole blocks is served, without O_DIRECT" bash -c '
    "$1" serve --engine "$2" -U - --run "nbdinfo --size \$uri" "$3" 2>&1 | grep -Eq "^1000$"' - "$HEADWORKS" "$ENGINE" "$DIR/odd.img"

# What a start should not pass over in silence.
start_says() { # PATTERN ARGUMENTS...: a line of the start message
    "$HEADWORKS" serve --engine "$ENGINE" "${@:2}" --run true 2>"$DIR/err"
    grep -E "$1" "$DIR/err" || { cat "$DIR/err"; return 1; }
}
start_is_silent() { ! start_says "$@"; }
check "an address without a port" start_says '^note: ip-addr has no effect without port$' -i 127.0.0.1 mem:size=1M
check "a port for all hosts" start_says '^note: port 0 of 0.0.0.0 is open to other hosts, unencrypted' -p 0 -i 0.0.0.0 mem:size=1M
check "a port for this host is nothing to note" start_is_silent '^note' -p 0 mem:size=1M
check "the default address is nothing to note" start_is_silent '^note' mem:size=1M
qemu-img create -q -f qcow2 "$DIR/image.qcow2" 64M && truncate -s 1M "$DIR/image.qcow2"
check "a qcow2 image as raw bytes" fails serve "$DIR/image.qcow2"
check "with what would be right" grep -q 'image.qcow2 begins like a qcow2 image: qcow2:path=' "$DIR/err"
check "what is around a device" start_says '^export: default: memory behind 2 wrappers \(delay, error\), 1 MiB' delay:of=error:rate=1%,of=mem:size=1M
check "every missing image" fails serve --control "$DIR/ctl" "a=$DIR/one.img" "b=$DIR/two.img"
check "by name" grep -q '/one.img does not exist; .*/two.img does not exist; give size=1G' "$DIR/err"
printf '[server]\nunix = "/none/a.sock"\ncontrol = "/none/b.ctl"\n[[export]]\nname = ""\nmem = { size = "1M" }\n' >"$DIR/order.toml"
in_order() { # the errors of a file from its first line to its last
    "$HEADWORKS" check "$DIR/order.toml" 2>"$DIR/err"
    cat "$DIR/err"
    [ "$(grep -o ':[0-9]*:1: [a-z]*' "$DIR/err" | tr '\n' ' ')" = ":2:1: unix :3:1: control " ]
}
check "errors in the order of the file" in_order

check "--version" bash -c '"$1" --version | grep -q "^headworks [0-9]"' - "$HEADWORKS"
check "--help" bash -c '"$1" --help | grep -q serve' - "$HEADWORKS"
check "lab --help" bash -c '"$1" lab --help | grep -q "^  replay "' - "$HEADWORKS"
check "lab run smoke --help" bash -c '"$1" lab run smoke --help | grep -q -- --scenarios' - "$HEADWORKS"
check "serve --help" bash -c '"$1" serve --help | grep -q -- --engine' - "$HEADWORKS"
