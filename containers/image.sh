#!/usr/bin/env bash
# Builds the image where no registry can be reached and no engine runs: on a base of its own, made by debootstrap, with
# buildah in a chroot. Needs root, buildah and debootstrap. Then it runs every command in it, as the image's own user:
# each with --help, and the broker for a moment with the file of compose.yaml, whose health and metrics are asked.
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
inside() { build run --isolation chroot "$@"; }

user=$(inside "$container" -- id -u)
[ "$user" != 0 ] || { echo "the image's processes are root's" >&2; exit 1; }
echo "user $user: $(inside "$container" -- xabridge --version)"
inside "$container" -- xabridge --help >"$work/said"
commands=$(sed -n 's/^    \([a-z]\+\)\( .*\)\?$/\1/p' "$work/said")
[ "$(wc -w <<<"$commands")" -ge 9 ] || { echo "commands are missing: $commands" >&2; exit 1; }
for command in $commands; do
    inside "$container" -- xabridge "$command" --help >"$work/said"
    echo "xabridge $command: $(head -n 1 "$work/said")"
done

# The network is this machine's: on ports of their own, and not for long.
amqp=${AMQP_PORT:-25672} http=${HTTP_PORT:-29464}
sed "s/0.0.0.0:5672/127.0.0.1:$amqp/; s/0.0.0.0:9464/127.0.0.1:$http/" "$top/containers/broker.toml" >"$work/broker.toml"
BROKER_PASSWORD=secret inside --env BROKER_PASSWORD=secret --volume "$work/broker.toml:/etc/xabridge/broker.toml:ro" "$container" -- \
    timeout 60 xabridge broker --config /etc/xabridge/broker.toml --user-from-env shop=BROKER_PASSWORD >"$work/broker.log" 2>&1 &
for _ in $(seq 50); do
    if inside "$container" -- xabridge health "http://127.0.0.1:$http/ready" >"$work/said" 2>&1; then break; fi
    sleep 0.5
done
echo "ready: $(cat "$work/said")"
inside "$container" -- xabridge health "http://127.0.0.1:$http/metrics" >"$work/said"
grep -q '^xabridge_broker_connections 0.0$' "$work/said"
head -n 2 "$work/broker.log"
wait || [ $? = 124 ]    # by timeout
build rm "$container" >/dev/null
