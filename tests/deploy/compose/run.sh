#!/usr/bin/env bash
# Really run docker-compose.yml on this machine: build, keys, up, one run, its weights and bytes, down.
#   run.sh FEDSIM [options of `fedsim deploy init`]
# Exit code 0: passed. 77: not tested, said loudly. Anything else: failed. Only a machine that can have no engine and no
# compose tool may skip; once an engine answers, every error is a failure, and with COMPOSE_REQUIRED=1 a skip is one too.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../../.."
fedsim=$(realpath -s "$1")
shift
export FEDSIM_DOCKER=${FEDSIM_DOCKER:-/var/cache/fedsim-docker}
export DOCKER_CONFIG=${DOCKER_CONFIG:-$FEDSIM_DOCKER/cli}
# Names of its own: other deployments on this machine stay as they are.
export COMPOSE_PROJECT_NAME=fedsim-ci FEDSIM_POLL_S=0.3
base=python:3.11-slim-bookworm
folder=$(mktemp -d)/federation
ours=0
mkdir -p "$FEDSIM_DOCKER"

say() { printf '[compose %4ds] %s\n' "$SECONDS" "$*"; }
skip() {
    local line
    line=$(printf '#%.0s' {1..100})
    printf '\n%s\nNOT TESTED: docker-compose.yml was not run on this machine.\nreason: %s\n%s\n\n' "$line" "$*" "$line"
    if [ "${COMPOSE_REQUIRED:-0}" = 1 ]; then exit 1; fi
    exit 77
}
compose() { docker compose --env-file "$folder/.env" "$@"; }
end() {
    local code=$?
    if [ -f "$folder/.env" ]; then
        if [ $code != 0 ] && [ $code != 77 ]; then compose ps --all; compose logs --tail 40; fi 2>&1 | tail -n 200
        compose --profile '*' down --remove-orphans --timeout 10 >/dev/null 2>&1 || true
    fi
    rm -rf "$(dirname "$folder")"
    if [ $ours = 1 ]; then "$here/engine_stop.sh"; fi
    exit $code
}
trap end EXIT
trap 'exit 130' INT TERM

if ! docker info >/dev/null 2>&1; then
    if ! command -v dockerd >/dev/null; then
        say "installing docker.io"
        { apt-get update -q && apt-get install -y -q --no-install-recommends docker.io; } >"$FEDSIM_DOCKER/apt.log" 2>&1 || true
    fi
    command -v dockerd >/dev/null || skip "no dockerd, and none could be installed: $(grep '^E:' "$FEDSIM_DOCKER/apt.log" | tail -n 1)"
    said=$("$here/engine_start.sh" 2>&1) || skip "dockerd does not start: $said"
    ours=1
    export DOCKER_HOST=unix://$FEDSIM_DOCKER/run/docker.sock
fi
"$here/compose_tool.sh" "$DOCKER_CONFIG" >/dev/null 2>"$FEDSIM_DOCKER/compose-tool.log" || skip "no docker compose: $(tail -n 1 "$FEDSIM_DOCKER/compose-tool.log")"
say "engine $(docker version --format '{{.Server.Version}}'), compose $(docker compose version --short)"

# Without a registry the base image is made of this machine's own files, and PyTorch's CPU wheel comes by wheelhouse/.
if ! docker image inspect "$base" >/dev/null 2>&1 && ! docker pull -q "$base" >/dev/null 2>&1; then
    "$here/base_image.sh" host "$(python3 -c 'import sys; print(sys.base_prefix)')" "$base"
fi
# Only a wheel that this machine has already: the index's default is built for CUDA, with gigabytes of libraries.
ls wheelhouse/torch-*.whl >/dev/null 2>&1 || PIP_NO_INDEX=1 python3 -m pip download -q --no-deps -d wheelhouse -c constraints.txt torch >/dev/null 2>&1 \
    || curl -fsI --max-time 20 "${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}/" >/dev/null 2>&1 || skip "no CPU wheel of PyTorch can be had here"
"$fedsim" deploy init "$folder" --clients 3 --port 28443 --set task.name=digits --set model.name=mlp \
    --set federation.rounds=2 --set training.lr=0.2 "$@"
compose --profile '*' config -q
compose build superlink proxy >"$FEDSIM_DOCKER/build.log" 2>&1 || { tail -n 40 "$FEDSIM_DOCKER/build.log"; exit 1; }
size=$(docker image inspect -f '{{.Size}}' fedsim:latest)
say "images built: fedsim $size bytes, proxy $(docker image inspect -f '{{.Size}}' fedsim-proxy:latest)"
[ "$size" -lt 1600000000 ] || { echo "the image has $size bytes: at most 1.6 GB"; exit 1; }

before=$SECONDS
"$fedsim" deploy up "$folder"
say "all healthy after $((SECONDS - before)) s"
for id in $(compose ps -q); do
    # No process as root, nothing written outside of the volumes and /tmp.
    docker top "$id" -eo pid,uid,comm | awk 'NR > 1 && $2 == 0 { print "root runs " $3; bad = 1 } END { exit bad }'
    [ "$(docker inspect -f '{{.HostConfig.ReadonlyRootfs}}' "$id")" = true ]
done
count() { # bytes that all clients' network interfaces have received or sent
    for id in $(compose ps -q client); do docker exec "$id" cat "/sys/class/net/eth0/statistics/$1_bytes"; done | awk '{ n += $1 } END { print n }'
}
up=$(count tx) down=$(count rx)
python3 "$here/eavesdrop.py" listen "$folder/heard" &
ear=$!
"$fedsim" deploy run "$folder"
kill $ear
up=$(($(count tx) - up)) down=$(($(count rx) - down))
compose logs --no-color --no-log-prefix proxy >"$folder/state/traffic.log"
run=$(find "$folder/runs" -mindepth 1 -maxdepth 1 -type d)
"$fedsim" deploy traffic "$run" "$folder/state/traffic.log"
printf '%-28s%14d%14d\n' "clients' interfaces" "$up" "$down"
"$(dirname "$fedsim")/python" "$here/same_as_simulation.py" "$folder" "$run" "$up" "$down"
python3 "$here/eavesdrop.py" search "$folder/heard" "$folder/runs" "$folder/out"
"$fedsim" deploy down "$folder"
[ -z "$(docker ps -q --filter label=com.docker.compose.project=$COMPOSE_PROJECT_NAME)" ]
say "down; PASSED"
