"""Decoders of what people bring: devices and traces, a deployment's files, keys that were kept, sweeps."""

import json
import os
import pickle
from pathlib import Path

from kit import Target, folder, read_file
from sum_targets import forge_key

from crypto import keys
from crypto.errors import CryptoError
from experiments.sweeps.spec import read_spec
from experiments.sweeps.trials import state_of
from fedsim.config import load_config, to_toml
from fedsim.deploy.folder import Deployment, Node
from fedsim.deploy.preflight import check_authority, check_key
from fedsim.deploy.traffic import read_traffic
from fedsim.errors import FedsimError
from fedsim.helper import read_released
from fedsim.keystore import find_keys
from fedsim.measure.runfolder import now
from fedsim.protections import protection_of
from fedsim.simulation.devices import PRESETS, read_devices, write_devices
from fedsim.simulation.errors import BadTrace
from fedsim.simulation.fedscale import import_behaviour, import_capacity, write_presence
from fedsim.simulation.presence import read_presence
from strategies.helper_tls import make_identity
from strategies.verified_fold import Journal

# ----------------------------------------------------------------------------------------- devices and traces

_TIMES = [{"client": 0, "start_s": 0.0, "end_s": 5.0, "period_s": 9.0}, {"client": 1, "start_s": 1.0, "end_s": 9.0}]


def devices(suffix: str) -> Target:
    path = folder() / f"made-devices.{suffix}"
    write_devices(list(PRESETS.values())[:3], path)
    read = read_file(f"devices.{suffix}", read_devices)
    return Target([path.read_bytes()], read, (BadTrace,), cheap=suffix == "csv")


def presence(suffix: str) -> Target:
    path = folder() / f"made-presence.{suffix}"
    write_presence([{"period_s": 9.0, **row} for row in _TIMES], path)

    def through(at: Path) -> None:
        read_presence(at, 3).wait_s(1e6, [0, 1, 2])

    return Target([path.read_bytes()], read_file(f"presence.{suffix}", through), (BadTrace,), cheap=suffix == "csv")


def fedscale_capacity() -> Target:
    rows = {n: {"computation": 10.5 + n, "communication": 2000 * n + 1} for n in range(3)}
    good = [pickle.dumps(rows, protocol) for protocol in (0, 2, 4)]
    return Target(good, read_file("capacity", import_capacity), (BadTrace,))


def fedscale_behaviour() -> Target:
    rows = {n: {"active": [1, 50 + n], "inactive": [20, 70], "finish_time": 90} for n in range(3)}
    good = [pickle.dumps(rows, protocol) for protocol in (0, 2, 4)]
    return Target(good, read_file("behaviour", import_behaviour), (BadTrace,))


# ----------------------------------------------------------------------------------------- a deployment's files


def environment_files() -> Target:
    good = [b"FEDSIM_DEPLOYMENT=/srv/x\nFEDSIM_UID=1000\nFEDSIM_PORT=8443\nFEDSIM_SUPERLINK_PORT=8000\n"]

    def through(path: Path) -> None:
        deployment = Deployment(path.parent)
        assert 0 < deployment.port < 65536 and 0 < deployment.superlink_port < 65536

    return Target(good, read_file("deployment/.env", through), (FedsimError,))


def node_files() -> Target:
    path = folder() / "made-node.toml"
    Node(superlink="fl.example.org:8443", partition_id=1, num_partitions=3, app="0" * 64, keys="keys").write(path)
    read = read_file("node/node.toml", lambda at: repr(Node.read(at.parent).app_config()))
    return Target([path.read_bytes()], read, (FedsimError,))


def identities() -> Target:
    """A client's private key and the authority's certificate; what is wrong with them is a sentence."""
    good = list(make_identity("fedsim-leader"))

    def through(path: Path) -> None:
        path.chmod(0o600)
        check_key(path)
        check_authority(path, now())

    return Target(good, read_file("node/identity", through), ())


def proxy_logs() -> Target:
    line = {"time": "1700000000.5", "key": "ab", "path": "/v1/fleet/push-object", "status": "200"}
    line |= {"received": "900", "received_body": "800", "sent": "80", "sent_body": ""}
    return Target([2 * (json.dumps(line).encode() + b"\n")], read_file("access.log", read_traffic), (FedsimError,))


# ----------------------------------------------------------------------------------------- keys and accounts


def kept_keys() -> Target:
    """The folder of a run's kept keys, as a resumed run's clients read it."""
    bundle = keys.KeyBundle(
        role=keys.CLIENTS, scheme="rlwe", params_hash=bytes(16), key_id=b"k" * 8, public=b"p" * 9, secret=b"s" * 16
    )
    run = folder() / "runs" / "cut"
    (folder() / "runs" / ".keys" / "cut" / "server").mkdir(parents=True)

    def read(data: bytes) -> None:
        path = folder() / "runs" / ".keys" / "cut" / "clients" / "clients" / "rlwe.key"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        os.chmod(path, 0o600)
        repr(keys.load_key(Path(find_keys(run).clients or ""), keys.CLIENTS, "rlwe"))

    return Target([bundle.encode()], read, (CryptoError, FedsimError), forge_key)


def releases() -> Target:
    """The leader's account of what it opened; a run that goes on reads it and adds to it."""
    site = protection_of(load_config(None, ["protection.name=preamble"]), None, "server")

    def through(path: Path) -> None:
        site.journaled(path.parent).last_opened()
        Journal(path).note(9, "asked")

    return Target([b"1,asked\n2,asked\n2,refused\n2,asked\n"], read_file("run/releases.csv", through), (CryptoError,))


def helper_accounts() -> Target:
    good = [json.dumps({bytes(16).hex(): [7, 5], "ab" * 16: [1, 1]}).encode()]
    return Target(good, read_file("released.json", lambda path: read_released(path, bytes(16))), (CryptoError,))


# ----------------------------------------------------------------------------------------- sweeps

_SWEEP = b"""[sweep]
name = "skew"
seeds = [1, 2]
target = 0.7
[settings.task]
name = "digits"
[grid]
"data.alpha" = [0.1, 100.0]
[random]
"training.lr" = { low = 0.01, high = 0.3, log = true }
"""


def sweeps() -> Target:
    read = read_file("sweep.toml", lambda path: read_spec(path, path.parent))
    return Target([_SWEEP], read, (FedsimError,), cheap=False)


def trial_states() -> Target:
    """Where a trial stands; a folder that cannot be read is begun anew."""
    config = load_config(None, [f"output.folder={folder()}", "output.name=trial"])
    (folder() / "trial").mkdir()
    (folder() / "trial" / "config.toml").write_text(to_toml(config), encoding="utf-8")
    good = [json.dumps({"status": "stopped", "exit_reason": "interrupted"}).encode()]

    def through(path: Path) -> None:
        assert state_of(config).status in ("missing", "running", "finished", "stopped", "failed")

    return Target(good, read_file("trial/run.json", through), (), cheap=False)
