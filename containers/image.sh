#!/usr/bin/env bash
# Builds the image where no registry can be reached and no engine runs: on a base of its own, made by debootstrap, with
# buildah in a chroot. Needs root, buildah and debootstrap. Then it runs the commands of compose.yaml's services in it.
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
work=${WORK:-$(mktemp -d)}
image=${IMAGE:-xabridge}
build() { buildah --storage-driver vfs --root "$work/storage" --runroot "$work/run" "$@"; }

if [ ! -e "$work/base/bin/sh" ]; then
    debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv bookworm "$work/base" >"$work/debootstrap.log"
fi
base=$(build from scratch)
build add -q "$base" "$work/base" /
build commit -q "$base" xabridge-base >/dev/null
build rm "$base" >/dev/null
# the registries' settings and certificates of this machine, where it has some
extra=()
[ -e /etc/pip.conf ] && extra+=(--volume /etc/pip.conf:/etc/pip.conf:ro)
[ -d /etc/ssl/certs ] && extra+=(--volume /etc/ssl/certs:/etc/ssl/certs:ro)
build bud --isolation chroot "${extra[@]}" --build-arg BASE=localhost/xabridge-base -t "$image" "$top"

container=$(build from "localhost/$image")
for command in --version --help "broker --help" "shop --help" "recover --help" "doctor --help"; do
    # shellcheck disable=SC2086
    build run --isolation chroot "$container" -- xabridge $command >"$work/said"
    echo "xabridge $command: $(head -n 1 "$work/said")"
done
build rm "$container" >/dev/null
