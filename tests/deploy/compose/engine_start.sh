#!/bin/bash
# Start a private dockerd by hand (no systemd needed). usage: engine-start.sh [extra dockerd flags]
# FEDSIM_DOCKER = state folder; STORAGE = overlay2 (default) | vfs. Says how to reach it; exit 1 if it does not come up.
set -u
D=${FEDSIM_DOCKER:-/var/cache/fedsim-docker}
mkdir -p "$D/run" "$D/data"
# what engine-stop.sh puts back
[ -e "$D/run/ip_forward.before" ] || { cat /proc/sys/net/ipv4/ip_forward > "$D/run/ip_forward.before"
  for t in iptables ip6tables; do $t-save > "$D/run/$t.before" 2>/dev/null; done; }
rm -f "$D/run/docker.sock"
setsid dockerd --data-root "$D/data" --exec-root "$D/run/exec" --pidfile "$D/run/dockerd.pid" \
  -H "unix://$D/run/docker.sock" --storage-driver "${STORAGE:-overlay2}" \
  --bip 172.30.0.1/24 --default-address-pool base=172.30.128.0/17,size=24 "$@" \
  > "$D/run/dockerd.log" 2>&1 < /dev/null &
P=$!; t0=$(date +%s%N)
for i in $(seq 300); do
  curl -fs --unix-socket "$D/run/docker.sock" http://d/_ping >/dev/null 2>&1 && { echo "dockerd pid $P up after $(( ($(date +%s%N)-t0)/1000000 )) ms; export DOCKER_HOST=unix://$D/run/docker.sock"; exit 0; }
  kill -0 $P 2>/dev/null || { echo "dockerd ended at once:"; grep -E 'level=(fatal|error)|failed' "$D/run/dockerd.log" | tail -5; exit 1; }
  sleep 0.2
done
echo "no answer in 60 s; see $D/run/dockerd.log"; kill -TERM $P; exit 1
