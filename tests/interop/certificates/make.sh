#!/bin/sh
# Makes the certificates of the tests anew: a CA, a broker's certificate for localhost, a client's for orders-svc.
# They are valid for a hundred years, protect nothing, and are trusted by nobody but the tests.
set -eu
cd "$(dirname "$0")"
new() {  # name, subject, extensions
    openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$1.key" -out "$1.csr" -subj "$2"
    printf '%s\n' "$3" > "$1.ext"
    openssl x509 -req -in "$1.csr" -CA ca.pem -CAkey ca.key -CAcreateserial -days 36500 -extfile "$1.ext" -out "$1.pem"
    rm "$1.csr" "$1.ext"
}
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -out ca.pem -days 36500 \
    -subj "/CN=xabridge tests" -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign,cRLSign"
new broker "/CN=localhost" "subjectAltName=DNS:localhost,IP:127.0.0.1"
new client "/CN=orders-svc" "extendedKeyUsage=clientAuth"
openssl pkcs12 -export -inkey broker.key -in broker.pem -name broker -passout pass:secret -out broker.p12  # for Java
rm ca.key ca.srl
