#!/usr/bin/env bash
# A federation in containers, from keys to report, with one command: deploy_demo.sh FEDSIM [options of `deploy init`]
# FEDSIM is the program. The deployment's folder is deployment/demo; it is made anew each time.
set -euo pipefail
cd "$(dirname "$0")/.."
fedsim=$1
shift
folder=deployment/demo

say() { printf '\n== %s\n' "$*"; }
down() { "$fedsim" deploy down "$folder" || true; }

if [ -e "$folder" ]; then
    down
    rm -rf "$folder"
fi
mkdir -p deployment
say "keys, certificates and settings"
"$fedsim" deploy init "$folder" --clients 3 "$@"
trap down EXIT
say "images and services"
"$fedsim" deploy up "$folder" --build
say "a run"
"$fedsim" deploy run "$folder"
run=$(find "$folder/runs" -mindepth 1 -maxdepth 1 -type d | head -n 1)
say "bytes on the wire, beside the ledger's"
docker compose --env-file "$folder/.env" logs --no-color --no-log-prefix proxy >"$folder/state/traffic.log"
"$fedsim" deploy traffic "$run" "$folder/state/traffic.log"
say "the same settings, simulated"
fedsim=$(realpath -s "$fedsim")
(cd "$folder" && "$fedsim" run settings.toml --name simulation)
"$fedsim" report "$run" "$folder/runs/simulation" --out "$folder/comparison"
say "reports: $run/report.html, and beside the simulation's $folder/comparison/report.html"
