#!/usr/bin/env bash
# matrix: either
# seconds: 7
# TLS: libnbd (GnuTLS), qemu, Python (OpenSSL) and our own client; who is refused; what is cut, glued on or garbage.
. "$(dirname "$0")/lib.sh"

check "certificates are made" "$HERE/certificates.sh" "$DIR"
pki=$DIR/pki

# One export for each thread: every connection is accepted by the first and moves, in the middle of its TLS, to its own.
disks=()
for name in a b c d; do disks+=("$name=$(spec "$name" 32M)"); done
serve --json --tls require --tls-verify-peer --tls-certificates "$pki" -p 0 --shards 4 --handshake-timeout 2s "${disks[@]}"
port=$(sed -n 's/.*"port":\([0-9]*\).*/\1/p' "$OUT")
tcp() { echo "nbds://localhost:$port/$1?tls-certificates=${2:-$pki}"; }
unix() { echo "nbds+unix:///$1?socket=$SOCKET&tls-certificates=${2:-$pki}"; }

announces_nbds() { grep -qF "\"uri\":\"$(unix a)\"" "$OUT"; }
check "the URIs are nbds, with the place of the CA" announces_nbds
says_tls() { nbdinfo "$1" | grep -q 'with TLS'; }
check "nbdinfo over TCP" says_tls "$(tcp a)"
check "nbdinfo over the unix socket" says_tls "$(unix b)"
check "nbdinfo --list" nbdinfo --list "$(unix "")"

# nbdcopy has four connections with 64 requests each in flight.
copied() { # NAME IN-URI OUT-URI
    pseudo_random 32 "$1" >"$DIR/$1.in" && nbdcopy "$DIR/$1.in" "$2" && nbdcopy "$3" "$DIR/$1.out" || return 1
    [ "$(sha256sum <"$DIR/$1.in")" = "$(sha256sum <"$DIR/$1.out")" ]
}
check "nbdcopy onto a thread's disk over TCP, back over the unix socket: same hash" copied a "$(tcp a)" "$(unix a)"
check "the same on another thread, the other way round" copied b "$(unix b)" "$(tcp b)"

credentials=tls-creds-x509,id=tls,endpoint=client,dir=$pki
image() { echo "driver=nbd,server.type=inet,server.host=localhost,server.port=$port,export=$1,tls-creds=tls"; }
by_qemu() {
    qemu-img convert --object "$credentials" -n -W -m 8 -f raw "$DIR/a.in" --target-image-opts "$(image c)" &&
        qemu-img convert --object "$credentials" --image-opts -W -m 8 -O raw "$(image c)" "$DIR/c.out" &&
        [ "$(sha256sum <"$DIR/a.in")" = "$(sha256sum <"$DIR/c.out")" ]
}
check "qemu-img there and back: same hash" by_qemu

our_info() { "$HEADWORKS" info "$1" | grep '^[[:space:]]tls: TLS 1.3, '; }
check "headworks info" our_info "$(tcp d)"
check "headworks bench --verify, 4k" "$HEADWORKS" bench --uri "$(tcp d)" --overwrite --rw randrw --bs 4k --iodepth 32 --runtime 0.2s --size 4M --verify
check "headworks bench --verify, 1M" "$HEADWORKS" bench --uri "$(unix d)" --overwrite --rw write --bs 1M --iodepth 8 --runtime 0.2s --verify

odd_length() { # a key that the library refuses without saying why
    mkdir "$DIR/odd" && openssl req -x509 -newkey rsa:2432 -nodes -days 2 -subj /CN=localhost \
        -keyout "$DIR/odd/server-key.pem" -out "$DIR/odd/server-cert.pem" 2>/dev/null
    ! "$HEADWORKS" serve -U - --tls on --tls-certificates "$DIR/odd" mem:size=1M --run true 2>"$DIR/err" &&
        grep -q 'an RSA key needs 2048, 3072 or 4096 bits' "$DIR/err" || { cat "$DIR/err"; return 1; }
}
check "a key of an odd length is refused with the lengths that work" odd_length

refused() { # PART-OF-THE-REASON URI
    ! "$HEADWORKS" info "$2" >"$DIR/refused" 2>&1 && grep -F "$1" "$DIR/refused"
}
foreign_refused() { ! nbdinfo "$1"; }
# Another CA's client, who believes ours.
mixed=$DIR/mixed
mkdir "$mixed" && cp "$DIR"/strangers/client-*.pem "$pki/ca-cert.pem" "$mixed/"
check "a client without a certificate is refused" refused CertificateRequired "$(tcp a "$DIR/nobody")"
check "libnbd without a certificate, too" foreign_refused "$(tcp a "$DIR/nobody")"
check "a client of another CA is refused" refused "the other side refused" "$(tcp a "$mixed")"
check "libnbd of another CA, too" foreign_refused "$(unix a "$mixed")"
check "a client does not believe a server of another CA" refused "UnknownIssuer" "$(tcp a "$DIR/strangers")"
check "nor one whose name is another" refused "not valid for name" "$(tcp a)&tls-hostname=elsewhere"
check "a plain client is told to use TLS" refused "it requires TLS" "nbd://localhost:$port/a"
check "a plain libnbd is refused" foreign_refused "nbd+unix:///a?socket=$SOCKET"

script tls.py "$SOCKET" "$DIR"
check "and after all that it serves" says_tls "$(tcp a)"
stop_server

serve --tls on --tls-certificates "$pki" "$(spec disk)"
plain_info() { nbdinfo "nbd+unix:///?socket=$SOCKET" | grep 'without TLS'; }
check "where TLS is on and not required, a plain client is served" plain_info
check "and one that asks for TLS, without a certificate of its own" says_tls "$(unix "" "$DIR/nobody")"
# Read again: a server whose certificate was renewed, here by another CA.
cp -r "$pki" "$DIR/first"
cp "$DIR"/strangers/server-*.pem "$pki/"
kill -HUP "$SERVER"
read_again() { grep -q "$1" "$LOG"; }
check "SIGHUP reads the certificates again" wait_until 10 read_again "certificates reloaded"
check "new clients see the new one" refused UnknownIssuer "$(unix "" "$DIR/nobody")"
check "and believe it if they know its CA" our_info "$(unix "" "$DIR/strangers")"
echo garbage >"$pki/server-cert.pem"
kill -HUP "$SERVER"
check "a bad file leaves all as it was" wait_until 10 read_again "the old ones stay in use: .*server-cert.pem has no certificate"
check "and clients are served" our_info "$(unix "" "$DIR/strangers")"
stop_server

# The reader of its log has gone: no reason to end, nor to read certificates no more.
cp -r "$DIR/strangers" "$DIR/unheard"
mkfifo "$DIR/reader"
"$HEADWORKS" serve --engine "$ENGINE" --tls on --tls-certificates "$DIR/unheard" -U "$SOCKET" mem:size=1M >"$OUT" 2>"$DIR/reader" &
SERVER=$!
exec 9<"$DIR/reader"
wait_until 20 is_up_or_gone
exec 9<&-
echo garbage >"$DIR/unheard/server-cert.pem"
kill -HUP "$SERVER"
check "a bad file and nobody to hear of it" our_info "$(unix "" "$DIR/strangers")"
cp "$DIR"/first/server-*.pem "$DIR/unheard/"
kill -HUP "$SERVER"
check "a good one is read after that" wait_until 10 our_info "$(unix "" "$DIR/first")"
stop_server

not_started() { # STATUS PART ARGUMENTS...
    ! launch "${@:3}" -U "$SOCKET" mem:size=1M && [ "$STATUS" -eq "$1" ] && grep -F "$2" "$LOG"
}
check "a server without certificates says so" not_started 2 "TLS needs the directory of server-cert.pem" --tls on
check "a bad certificate is named at the start" not_started 1 "server-cert.pem has no certificate in PEM" --tls on --tls-certificates "$pki"
check "pre-shared keys are answered with a sentence" not_started 2 "pre-shared keys are not supported" --tls require --tls-psk "$DIR/psk"
exit $BAD
