"""Settings -> secure sums, and the keys of a simulated run."""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from crypto.base import Plan
from crypto.ckks import CkksParameters
from crypto.keys import CLIENTS, HELPER, SERVER, KeyBundle, KeyedSum, save_keys
from fedsim.config import (
    BfvConfig,
    CkksConfig,
    OpenFheBgvConfig,
    OpenFheCkksConfig,
    OpenFheThresholdConfig,
    PreambleConfig,
    RlweConfig,
    RlweThresholdConfig,
    RunConfig,
    with_values,
)
from fedsim.helper import Task
from fedsim.helper_daemon import helper_process
from strategies import preamble
from strategies.helper_link import ADDRESS_FILE
from strategies.keyed import KeyedProtection
from strategies.preamble import PreambleProtection
from strategies.protection import OpenedBy, Plain, Protection

#: Temporary folders of keys, the file in each whose lock its process holds, and how young one is left alone.
_KEYS, _LOCK, _SETTLED_S = "fedsim-keys-", "lock", 60.0


def protection_of(config: RunConfig, keys: str | None, role: str) -> Protection:
    """Return the protection that the settings name.

    Args:
        config: the settings.
        keys: folder of this party's keys, or ``None``.
        role: whose public material to use, ``server`` or ``clients``.
    """
    p = config.protection
    if p.name == "plain":
        return Plain()
    if isinstance(p, PreambleConfig):
        return _preamble(config, p, keys, role)
    entry, options, opened, members = _scheme(p, config.federation.rounds)
    return KeyedProtection(
        scheme_name=p.name,
        entry=entry,
        options=tuple(sorted(options.items())),
        limit=p.plan_bound,
        opened=opened,
        members=members,
        keys=keys,
        role=role,
        repeatable=p.repeatable,
    )


def _preamble(config: RunConfig, p: PreambleConfig, keys: str | None, role: str) -> PreambleProtection:
    # Where files lie and which engine runs differ between the parties of one run; all the rest must not. A second run
    # of the same settings and key is the same run to the helper, which releases no round of it again.
    public = config.model_dump(mode="json", exclude={"output", "engine"})
    return PreambleProtection(
        run=preamble.run_id(sorted(public.items())),
        rounds=config.federation.rounds,
        epsilon=p.epsilon,
        delta=p.delta,
        per=p.budget,
        clip_norm=p.clip_norm,
        clip_factor=p.clip_factor,
        block_size=p.block_size,
        blocks=p.blocks,
        byte_budget=p.byte_budget,
        dense=p.dense,
        word_bits=p.word_bits,
        fraction_bits=p.fraction_bits,
        rotated=p.rotation,
        verify=p.verify,
        minimum_cohort=p.min_cohort,
        noisy=p.noise == "gaussian",
        keys=keys,
        role=role,
        transport=p.transport,
        timeout_s=p.helper_timeout_s,
    )


def _scheme(p: Any, rounds: int) -> tuple[str, dict[str, Any], OpenedBy, int]:
    """Return entry, options, who opens, and the committee's size."""
    options: dict[str, Any]
    if isinstance(p, BfvConfig):
        options = {"value_bits": p.value_bits, "mode": p.mode, "ring": p.poly_degree}
        return "crypto.he_seal:BfvSum", options | {"stochastic": p.rounding == "stochastic"}, "clients", 0
    if isinstance(p, RlweConfig):
        options = {"value_bits": p.value_bits, "mode": p.mode, "ring": p.poly_degree}
        return "crypto.rlwe.scheme:RlweSum", options | {"stochastic": p.rounding == "stochastic"}, "clients", 0
    if isinstance(p, RlweThresholdConfig):
        options = {"parties": p.committee_size, "openings": rounds, "value_bits": p.value_bits}
        options |= {"smudging_bits": p.smudging_bits, "stochastic": p.rounding == "stochastic"}
        return "crypto.rlwe.threshold:RlweThreshold", options, "committee", p.committee_size
    if isinstance(p, CkksConfig):
        chosen = CkksParameters(
            ring=p.poly_degree,
            chain=p.chain,
            scale_bits=p.scale_bits,
            special=len(p.chain) > 1,
            insecure=p.allow_insecure,
        )
        return "crypto.he_tenseal:CkksSum", {"parameters": chosen}, "clients", 0
    if isinstance(p, OpenFheCkksConfig):
        options = {"ring": p.poly_degree, "first_bits": p.modulus_bits, "scale_bits": p.scale_bits}
        options |= {"symmetric": p.mode == "symmetric", "python": p.interpreter}
        return "fedsim.protections:openfhe_ckks", options, "clients", 0
    if isinstance(p, OpenFheBgvConfig):
        options = {"ring": p.poly_degree, "first_bits": p.modulus_bits, "plain_bits": p.plain_bits}
        options |= {"symmetric": p.mode == "symmetric", "python": p.interpreter}
        return "fedsim.protections:openfhe_bgv", options, "clients", 0
    assert isinstance(p, OpenFheThresholdConfig)
    options = {"parties": p.committee_size, "base": p.base, "flooding": p.flooding, "python": p.interpreter}
    return "crypto.he_openfhe_threshold:threshold_sum", options, "committee", p.committee_size


def with_interpreter(config: RunConfig) -> RunConfig:
    """Return the settings with the interpreter that loads OpenFHE, so that only this process has to search.

    Clients on other machines have their own: under a Ray cluster's address each process searches.

    Raises:
        BackendUnavailable: no interpreter loads it; lists what was tried.
    """
    p = config.protection
    if p.needs != "openfhe" or getattr(p, "interpreter", None) or config.engine.ray_address:
        return config
    from crypto._openfhe.find import find_python

    return with_values(config, {"protection.interpreter": find_python()})


def openfhe_ckks(
    plan: Plan, *, ring: int, first_bits: int, scale_bits: int | None, symmetric: bool, python: str | None
) -> KeyedSum:
    """Return the CKKS sum on OpenFHE; without `scale_bits` the largest scale that leaves room for the sum."""
    from crypto._openfhe.params import Ring
    from crypto.he_openfhe import OpenFheCkks, ckks_ring

    chosen = (
        ckks_ring(plan, ring, first_bits)
        if scale_bits is None
        else Ring("ckks", ring, first_bits, scale_bits=scale_bits)
    )
    return OpenFheCkks(plan, chosen, symmetric=symmetric, python=python)


def openfhe_bgv(
    plan: Plan, *, ring: int, first_bits: int, plain_bits: int, symmetric: bool, python: str | None
) -> KeyedSum:
    """Return the exact BGV sum on OpenFHE."""
    from crypto._openfhe.params import Ring
    from crypto.he_openfhe import OpenFheBgv

    return OpenFheBgv(plan, Ring("bgv", ring, first_bits, plain_bits=plain_bits), symmetric=symmetric, python=python)


@dataclass(frozen=True)
class KeyRing:
    """Where the keys of a simulated run lie, apart for each side.

    Attributes:
        server: the server's folder, public material only; ``None`` without keys.
        clients: the clients' and the committee's folder.
        helper: socket of the second aggregator, for the node that relays to it; ``None`` where none does.
    """

    server: str | None = None
    clients: str | None = None
    helper: str | None = None


@contextmanager
def fresh_keys(protection: Protection, plan: Plan) -> Iterator[KeyRing]:
    """Make a run's keys in private temporary folders, outside the run's folder, and remove them at the end.

    A second aggregator is started beside, with the only copy of its key, and stopped at the end.
    """
    if not isinstance(protection, KeyedProtection | PreambleProtection):
        yield KeyRing()
        return
    _remove_leftovers()
    root = Path(tempfile.mkdtemp(prefix=_KEYS))
    ring = KeyRing(str(root / "server"), str(root / "clients"))
    try:
        # Held as long as this process lives, however it ends.
        with (root / _LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if isinstance(protection, KeyedProtection):
                write_keys(protection.describe(plan), root / "server", root / "clients")
                yield ring
            else:
                with _helper(protection, plan, root) as address:
                    yield replace(ring, helper=address if protection.relayed else None)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _remove_leftovers() -> None:
    """Remove the keys of runs that were killed: folders of this user whose lock nobody holds any more."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_KEYS}*"):
        try:
            if folder.stat().st_uid != os.getuid() or time.time() - folder.stat().st_mtime < _SETTLED_S:
                continue
            with (folder / _LOCK).open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue


@contextmanager
def _helper(protection: PreambleProtection, plan: Plan, root: Path) -> Iterator[str]:
    """Make the helper's key pair, hand out the public key, and run the helper until the end of the block.

    Yields:
        The helper's socket, which the server is told only where it connects to it itself.
    """
    described = helper_task(protection, plan)
    write_bundles(preamble.make_keys(), {role: root / role for role in (SERVER, CLIENTS, HELPER)})
    task, address = root / HELPER / "task.json", root / HELPER / "socket"
    described.write(task)
    if not protection.relayed:
        (root / SERVER / ADDRESS_FILE).write_text(str(address), encoding="utf-8")
    with helper_process(task, root / HELPER, str(address), root / HELPER / "log.txt"):
        yield str(address)


def helper_task(protection: PreambleProtection, plan: Plan) -> Task:
    """Return what the helper's owner agrees to in a run.

    Raises:
        BudgetExceeded: the run does not fit the protection.
    """
    parameters = protection.secure_sum(plan).parameters
    return Task(run=protection.run, plan=plan, parameters=parameters, rounds=protection.rounds)


def write_bundles(bundles: Iterable[KeyBundle], folders: Mapping[str, Path]) -> list[Path]:
    """Write each role's key into that role's own folder."""
    return [path for bundle in bundles for path in save_keys(folders[bundle.role], [bundle])]


def write_keys(scheme: KeyedSum, server: Path, clients: Path) -> list[Path]:
    """Make a key set and write the server's part and the others' apart."""
    bundles = scheme.make_keys()
    paths = save_keys(server, [b for b in bundles if b.role == SERVER])
    return paths + save_keys(clients, [b for b in bundles if b.role != SERVER])
