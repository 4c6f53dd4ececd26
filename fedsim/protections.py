"""Settings -> secure sums, and the keys of a simulated run."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crypto.base import Plan
from crypto.ckks import CkksParameters
from crypto.keys import SERVER, KeyedSum, save_keys
from fedsim.config import (
    BfvConfig,
    CkksConfig,
    OpenFheBgvConfig,
    OpenFheCkksConfig,
    OpenFheThresholdConfig,
    RunConfig,
    with_values,
)
from strategies.keyed import KeyedProtection
from strategies.protection import OpenedBy, Plain, Protection


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
    entry, options, opened, members = _scheme(p)
    return KeyedProtection(
        scheme_name=p.name,
        entry=entry,
        options=tuple(sorted(options.items())),
        limit=p.plan_bound,
        opened=opened,
        members=members,
        keys=keys,
        role=role,
    )


def _scheme(p: Any) -> tuple[str, dict[str, Any], OpenedBy, int]:
    """Return entry, options, who opens, and the committee's size."""
    options: dict[str, Any]
    if isinstance(p, BfvConfig):
        options = {"value_bits": p.value_bits, "mode": p.mode, "ring": p.poly_degree}
        return "crypto.he_seal:BfvSum", options | {"stochastic": p.rounding == "stochastic"}, "clients", 0
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
    """

    server: str | None = None
    clients: str | None = None


@contextmanager
def fresh_keys(protection: Protection, plan: Plan) -> Iterator[KeyRing]:
    """Make a run's keys in private temporary folders, outside the run's folder, and remove them at the end."""
    if not isinstance(protection, KeyedProtection):
        yield KeyRing()
        return
    root = Path(tempfile.mkdtemp(prefix="fedsim-keys-"))
    try:
        write_keys(protection.describe(plan), root / "server", root / "clients")
        yield KeyRing(str(root / "server"), str(root / "clients"))
    finally:
        shutil.rmtree(root, ignore_errors=True)


def write_keys(scheme: KeyedSum, server: Path, clients: Path) -> list[Path]:
    """Make a key set and write the server's part and the others' apart."""
    bundles = scheme.make_keys()
    paths = save_keys(server, [b for b in bundles if b.role == SERVER])
    return paths + save_keys(clients, [b for b in bundles if b.role != SERVER])
