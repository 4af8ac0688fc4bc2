#!/usr/bin/env bash
# Makes certificates for the tests of TLS, in the layout of libnbd, nbdkit and qemu.
#
#   certificates.sh DIR      makes DIR/{pki,acme,nobody,strangers}
#
# pki has all files of one CA: the server's (localhost, 127.0.0.1), a client's. acme has another client of it, with names of all
# kinds. nobody has the CA and no client's certificate,
# strangers is signed by another CA. The server's key is RSA, the client's is EC: both kinds of key are tried.
set -eu -o pipefail
dir=$1

authority() { # DIR NAME
    mkdir -p "$1"
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj "/CN=$2" \
        -addext keyUsage=critical,keyCertSign,cRLSign -keyout "$1/ca-key.pem" -out "$1/ca-cert.pem" 2>/dev/null
}

signed() { # DIR WHO EXTENSIONS KEY...
    local into=$1 who=$2 extensions=$3
    shift 3
    openssl req -newkey "$@" -nodes -subj "/CN=$who" -keyout "$into/$who-key.pem" -out "$into/$who.csr" 2>/dev/null
    printf 'basicConstraints=CA:FALSE\nkeyUsage=digitalSignature,keyEncipherment\n%s\n' "$extensions" >"$into/$who.ext"
    openssl x509 -req -days 30 -in "$into/$who.csr" -CA "$into/ca-cert.pem" -CAkey "$into/ca-key.pem" -CAcreateserial \
        -extfile "$into/$who.ext" -out "$into/$who-cert.pem" 2>/dev/null
    rm "$into/$who.csr" "$into/$who.ext"
}

for into in pki strangers; do
    authority "$dir/$into" "Headworks test CA, $into"
    signed "$dir/$into" server $'subjectAltName=DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth' rsa:2048
    signed "$dir/$into" client $'subjectAltName=DNS:client\nextendedKeyUsage=clientAuth' ec -pkeyopt ec_paramgen_curve:P-256
done
mkdir -p "$dir/nobody"
cp "$dir/pki/ca-cert.pem" "$dir/nobody/"
mkdir -p "$dir/acme"
cp "$dir/pki/ca-cert.pem" "$dir/acme/"
signed "$dir/pki" acme $'subjectAltName=DNS:host1.acme.example,URI:spiffe://acme/db,email:ops@acme.example\nextendedKeyUsage=clientAuth' ec -pkeyopt ec_paramgen_curve:P-256
for part in cert key; do mv "$dir/pki/acme-$part.pem" "$dir/acme/client-$part.pem"; done
