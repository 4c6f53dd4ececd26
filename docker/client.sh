#!/bin/sh
# Start the client whose number is this container's among the service's replicas: fedsim-client-3 is client 2.
# Docker's name server knows a container's name by its address, so `--scale client=5` needs no five services.
set -eu
number=${FEDSIM_CLIENT:-}
if [ -z "$number" ]; then
    # Not by /etc/hosts, where the address has the container's id.
    name=$(getent -s dns hosts "$(hostname -i)" | awk '{ print $2 }')
    replica=$(printf '%s' "${name%%.*}" | sed -n 's/.*[-_]\([0-9][0-9]*\)$/\1/p')
    [ -n "$replica" ] || { echo "no number at the end of this container's name ($name): set FEDSIM_CLIENT=0, 1, ..." >&2; exit 2; }
    number=$((replica - 1))
fi
folder=/run/fedsim/clients/$number
[ -d "$folder" ] || { echo "there is no $folder: this deployment has fewer clients; make it anew for more" >&2; exit 2; }
export FEDSIM_OUT=/run/fedsim/out/$number
exec fedsim deploy node "$folder" --wait "${FEDSIM_WAIT_S:-180}" --port 9094
