"""Searches every container for secrets that are another party's: kept_apart.py FOLDER

What a container shows its processes: all files of its mounts, and its environment. A secret is searched for by its
bytes, not by its name. Every party's own secrets must be found where they belong, or the search proves nothing.
"""

import json
import subprocess
import sys
from pathlib import Path

from crypto.keys import KeyBundle

#: Which service may show which folder's secrets; the authority's key is no service's.
MAY = {"ca": set(), "server": {"superlink", "runner", "admin"}} | {n: {n} for n in ("proxy", "helper", "relay")}


def secrets(folder: Path) -> dict[str, bytes]:
    """Return the secret bytes below a folder, by file."""
    found = {}
    for path in (p for p in folder.rglob("*") if p.is_file()):
        data = path.read_bytes()
        if b"PRIVATE KEY-----" in data:
            found[str(path)] = data.partition(b"PRIVATE KEY-----")[2].partition(b"-----END")[0].strip()
        elif data[:4] == b"FSKY" and KeyBundle.decode(data).secret:
            found[str(path)] = KeyBundle.decode(data).secret
        elif path.name == "runner.secret":
            found[str(path)] = data
    return found


def shown(container: str) -> bytes:
    """Return all that a container shows: files of its mounts, environments of its processes."""
    reading = "cat /proc/[0-9]*/environ; find /run -type f -exec cat {} +"
    inside = subprocess.run(["docker", "exec", container, "sh", "-c", reading], capture_output=True).stdout
    described = json.loads(subprocess.run(["docker", "inspect", container], capture_output=True, check=True).stdout)
    mounts = [Path(mount["Source"]) for mount in described[0]["Mounts"]]
    files = [p for m in mounts for p in ([m] if m.is_file() else m.rglob("*")) if p.is_file()]
    return b"\0".join([inside, json.dumps(described).encode(), *(p.read_bytes() for p in files)])


def main(folder: Path) -> int:
    """Say what was found; returns the exit code."""
    owned = {name: secrets(folder / name) for name in (*MAY, "clients")}
    listed = ["docker", "compose", "--env-file", str(folder / ".env"), "ps", "--format", "{{.Service}} {{.ID}}"]
    rows = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()
    bad, own = 0, set()
    for service, container in zip(rows[::2], rows[1::2], strict=True):
        seen = shown(container)
        for owner, held in owned.items():
            for name, secret in held.items():
                if secret not in seen:
                    continue
                own.add(owner)
                if service not in MAY.get(owner, {"client"}):
                    print(f"{service} shows {name}")
                    bad = 1
    # Nobody may hold the authority's key; the others' must have been found, each in its own container.
    missing = {owner for owner, held in owned.items() if held} - own - {"ca"}
    print(
        f"{len(rows) // 2} containers, {sum(map(len, owned.values()))} secrets, found at their owners: {sorted(own)}, "
        f"elsewhere: {'some' if bad else 'none'}"
    )
    if missing:
        print(f"secrets of {sorted(missing)} were found nowhere: the search proves nothing")
    return 1 if missing else bad


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
