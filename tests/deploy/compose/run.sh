#!/usr/bin/env bash
# Really run docker-compose.yml on this machine.
#   run.sh FEDSIM [options of `fedsim deploy init`]    build, keys, up, one run, its weights and bytes, down
#   run.sh FEDSIM --protections                        the same under each kind of protection
#   run.sh FEDSIM --drills [NAME ...]                  what docs/deployment.md says of failures; about 20 minutes
# Exit code 0: passed. 77: not tested, said loudly. Anything else: failed. Only a machine that can have no engine and no
# compose tool may skip; once an engine answers, every error is a failure, and with COMPOSE_REQUIRED=1 a skip is one too.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../../.."
fedsim=$(realpath -s "$1")
python=$(dirname "$fedsim")/python
shift
export FEDSIM_DOCKER=${FEDSIM_DOCKER:-/var/cache/fedsim-docker}
export DOCKER_CONFIG=${DOCKER_CONFIG:-$FEDSIM_DOCKER/cli}
# Names of its own: other deployments on this machine stay as they are.
export COMPOSE_PROJECT_NAME=${FEDSIM_PROJECT:-fedsim-ci} FEDSIM_TEST_PORT=${FEDSIM_TEST_PORT:-28443} FEDSIM_POLL_S=0.3
base=python:3.11-slim-bookworm
place=$(mktemp -d)
folder=$place/none
small=(--port "$FEDSIM_TEST_PORT" --set task.name=digits --set model.name=mlp --set training.lr=0.2)
ours=0
mkdir -p "$FEDSIM_DOCKER"
source "$here/engine.sh"

compose() { docker compose --env-file "$folder/.env" "$@"; }
end() {
    local code=$?
    if [ -f "$folder/.env" ]; then
        if [ $code != 0 ] && [ $code != 77 ]; then compose ps --all; compose logs --tail 40; fi 2>&1 | tail -n 200
        compose --profile '*' down --remove-orphans --timeout 10 >/dev/null 2>&1 || true
    fi
    rm -rf "$place"
    if [ $ours = 1 ]; then "$here/engine_stop.sh"; fi
    exit $code
}
trap end EXIT
trap 'exit 130' INT TERM

bytes() { # rx or tx: bytes that all network interfaces of a service's containers have received or sent
    for id in $(compose ps -q "$2"); do docker exec "$id" cat "/sys/class/net/eth0/statistics/$1_bytes"; done | awk '{ n += $1 } END { print n + 0 }'
}
no_root() { # No process as root, nothing written outside of the volumes and /tmp.
    local id
    for id in $(compose ps -q); do
        docker top "$id" -eo pid,uid,comm | awk 'NR > 1 && $2 == 0 { print "root runs " $3; bad = 1 } END { exit bad }'
        [ "$(docker inspect -f '{{.HostConfig.ReadonlyRootfs}}' "$id")" = true ]
    done
    say "$(compose ps -q | wc -l) containers: no process is root's, all file systems are read-only"
}
measured_run() { # one run of the deployment in $folder, with everything that its traffic should and should not show
    local before=$SECONDS run up down helper ear
    "$fedsim" deploy up "$folder"
    say "all healthy after $((SECONDS - before)) s"
    no_root
    "$python" "$here/kept_apart.py" "$folder"
    up=$(bytes tx client) down=$(bytes rx client) helper=$(($(bytes rx helper) + $(bytes tx helper)))
    python3 "$here/eavesdrop.py" listen "$folder/heard" &
    ear=$!
    "$fedsim" deploy run "$folder"
    kill $ear
    up=$(($(bytes tx client) - up)) down=$(($(bytes rx client) - down))
    helper=$(($(bytes rx helper) + $(bytes tx helper) - helper))
    compose logs --no-color --no-log-prefix proxy >"$folder/state/traffic.log"
    run=$(find "$folder/runs" -mindepth 1 -maxdepth 1 -type d)
    "$fedsim" deploy traffic "$run" "$folder/state/traffic.log"
    printf '%-28s%14d%14d\n' "clients' interfaces" "$up" "$down"
    "$python" "$here/same_as_simulation.py" "$folder" "$run" "$up" "$down" "$helper"
    python3 "$here/eavesdrop.py" search "$folder/heard" "$folder/runs" "$folder/out"
    positive_control
    "$fedsim" deploy down "$folder"
    [ -z "$(docker ps -q --filter label=com.docker.compose.project=$COMPOSE_PROJECT_NAME)" ]
}
positive_control() { # the same words and the same model, sent in the clear between two containers, must be heard
    local ear
    python3 "$here/eavesdrop.py" listen "$folder/heard-clear" &
    ear=$!
    sleep 1
    "$python" "$here/in_the_clear.py" "$folder" "${COMPOSE_PROJECT_NAME}_fleet"
    sleep 1
    kill $ear
    if ! python3 "$here/eavesdrop.py" hear "$folder/heard-clear" "$folder/runs" "$folder/out"; then
        echo "an update in the clear was not heard: the search proves nothing"
        exit 1
    fi
    say "the same update in the clear was heard"
}

mode=${1:-}
case $mode in --drills | --protections) shift ;; *) mode=--once ;; esac
have_engine
"$fedsim" deploy init "$place/first" "${small[@]}"
have_images "$place/first"
case $mode in
--once)
    folder=$place/once
    "$fedsim" deploy init "$folder" --clients 3 "${small[@]}" --set federation.rounds=2 "$@"
    measured_run
    ;;
--protections)
    # First without what is random about them, then PREAMBLE as it is meant.
    nearest="--set protection.rounding=nearest"
    open="--set protection.dense=true --set protection.noise=off-not-private"
    for sets in "bfv $nearest" "rlwe-threshold $nearest" "preamble $open" preamble plain; do
        read -r name more <<<"$sets"
        folder="$place/$name${more:+-exact}"
        say "protection $sets"
        # shellcheck disable=SC2086
        "$fedsim" deploy init "$folder" --clients 3 "${small[@]}" --set federation.rounds=2 --set "protection.name=$name" $more "$@"
        measured_run
    done
    ;;
--drills)
    "$python" "$here/drills.py" "$fedsim" "$place" "$@"
    ;;
esac
say "down; PASSED"
