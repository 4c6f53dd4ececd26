#!/usr/bin/env bash
# Sourced by run.sh: an engine, a compose tool, a base image, PyTorch's wheel, and our two images.
# Sets `ours` to 1 where it started the engine. Only a machine that can have none of these may skip.
say() { printf '[compose %4ds] %s\n' "$SECONDS" "$*"; }
skip() {
    local line
    line=$(printf '#%.0s' {1..100})
    printf '\n%s\nNOT TESTED: docker-compose.yml was not run on this machine.\nreason: %s\n%s\n\n' "$line" "$*" "$line"
    if [ "${COMPOSE_REQUIRED:-0}" = 1 ]; then exit 1; fi
    exit 77
}

have_engine() {
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
}

# Without a registry the base image is made of this machine's own files, and PyTorch's CPU wheel comes by wheelhouse/.
have_images() { # FOLDER of any deployment, for the variables; FEDSIM_NO_BUILD=1 takes the images that are there
    if [ -n "${FEDSIM_NO_BUILD:-}" ]; then return; fi
    if ! docker image inspect "$base" >/dev/null 2>&1 && ! docker pull -q "$base" >/dev/null 2>&1; then
        "$here/base_image.sh" host "$(python3 -c 'import sys; print(sys.base_prefix)')" "$base"
    fi
    # Only a wheel that this machine has already: the index's default is built for CUDA, with gigabytes of libraries.
    ls wheelhouse/torch-*.whl >/dev/null 2>&1 || PIP_NO_INDEX=1 python3 -m pip download -q --no-deps -d wheelhouse -c constraints.txt torch >/dev/null 2>&1 \
        || curl -fsI --max-time 20 "${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}/" >/dev/null 2>&1 || skip "no CPU wheel of PyTorch can be had here"
    docker compose --env-file "$1/.env" --profile '*' config -q
    docker compose --env-file "$1/.env" build superlink proxy >"$FEDSIM_DOCKER/build.log" 2>&1 || { tail -n 40 "$FEDSIM_DOCKER/build.log"; exit 1; }
    size=$(docker image inspect -f '{{.Size}}' fedsim:latest)
    say "images built: fedsim $size bytes, proxy $(docker image inspect -f '{{.Size}}' fedsim-proxy:latest)"
    [ "$size" -lt 1600000000 ] || { echo "the image has $size bytes: at most 1.6 GB"; exit 1; }
}
