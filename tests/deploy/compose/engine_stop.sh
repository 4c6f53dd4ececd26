#!/bin/bash
# Stop the dockerd that engine-start.sh started (TERM to its pid; it ends its own containerd) and put the network back as it was.
D=${FEDSIM_DOCKER:-/var/cache/fedsim-docker}
P=$(cat "$D/run/dockerd.pid" 2>/dev/null)
if [ -n "$P" ] && [ "$(cat /proc/$P/comm 2>/dev/null)" = dockerd ]; then
  kill -TERM "$P"
  for i in $(seq 150); do kill -0 "$P" 2>/dev/null || break; sleep 0.2; done
  kill -0 "$P" 2>/dev/null && { echo "still there after 30 s: KILL"; kill -KILL "$P"; }
fi
[ -e "$D/run/ip_forward.before" ] || { echo "stopped (nothing to put back)"; exit 0; }
# dockerd leaves docker0, its iptables chains, FORWARD's DROP and ip_forward=1 behind
ip link del docker0 2>/dev/null
for ipt in iptables ip6tables; do
  b=$D/run/$ipt.before; [ -e "$b" ] || continue
  $ipt-restore < "$b" 2>/dev/null
  for t in filter nat raw; do grep -q "^\*$t" "$b" && continue
    [ $t = filter ] && $ipt -P FORWARD ACCEPT; $ipt -t $t -F; $ipt -t $t -X; done 2>/dev/null
done
cat "$D/run/ip_forward.before" > /proc/sys/net/ipv4/ip_forward
rm -f "$D"/run/*.before
echo stopped
