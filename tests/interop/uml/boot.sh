# Boots user-mode Linux, in which the kernel's own NBD client is; to be sourced after lib.sh.
#
# The guest is a kernel of its own: it has io_uring, whatever the host allows. Its root is the host's, its /dev and $DIR are its own.

export PATH=$PATH:/usr/sbin:/sbin
FOLDER=$DIR/host
mkdir -p "$FOLDER" "$DIR/guest"

without() { # REASON
    skip "${GUEST_DOES:-the kernel as a client}" "$1"
    exit 0
}
for program in linux.uml nbd-client mkfs.ext4 debugfs cc; do
    command -v $program >/dev/null || without "$program is not installed"
done

run_guest() { # CHECKS SECONDS [NAME=VALUE...]: the script prints its checks
    cc -O1 -shared -fPIC -o "$FOLDER/xstate.so" "$HERE/uml/xstate.c" || exit 1
    {
        echo "export HEADWORKS=$(realpath "$HEADWORKS") ENGINE=uring BACKEND=file CACHE=0 DIR=$DIR/guest IMAGES=$IMAGES PYTHON=$PYTHON"
        echo "export FOLDER=$FOLDER CHECKS=$1" "${@:3}"
    } >"$FOLDER/env"
    # TMPDIR: where the guest's memory is; /dev/shm may be too small.
    TMPDIR=$FOLDER LD_PRELOAD=$FOLDER/xstate.so timeout --kill-after=5 "$2" linux.uml mem=192M rootfstype=hostfs rootflags=/ rw \
        init="$(realpath "$HERE/uml/init.sh")" FOLDER="$FOLDER" con=null con0=null,fd:1 </dev/null >"$FOLDER/console" 2>&1
    tr -d '\r' <"$FOLDER/console" >"$FOLDER/console.text"
    if [ ! -s "$FOLDER/checks" ]; then
        without "user-mode Linux does not start here: $(grep -v '^ *$' "$FOLDER/console.text" | grep -iE 'ptrace|error|fail|panic|denied' | head -n 1)"
    fi
    grep -q '^exit 0$' "$FOLDER/checks" || { BAD=1; tail -n 40 "$FOLDER/console.text" | quote; }
    cat "$FOLDER/checks"
    check "the guest ran to its end" grep -q '^exit' "$FOLDER/checks"
}
