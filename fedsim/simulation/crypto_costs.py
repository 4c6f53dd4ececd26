"""Seconds that a run's protection costs, as constants: measured once, on the core that counts 1.

Homomorphic schemes: ciphertexts times the cost of one (:data:`crypto.sizes.COSTS`). PREAMBLE: nanoseconds a coordinate
and a byte, by ``experiments/bench/preamble.py``. Packing and adding in the clear count nothing.
"""

from dataclasses import dataclass

from crypto.base import Budget, Plan
from crypto.sizes import sizes

__all__ = ["FREE", "CryptoCosts", "crypto_costs"]


@dataclass(frozen=True, slots=True)
class CryptoCosts:
    """Seconds on the reference core.

    Attributes:
        seal_s: a client seals its update.
        add_s: an aggregator adds one client's vector.
        open_s: a client opens a total at the start of its turn; 0 where the server sends the model.
        server_open_s: the server opens a total; 0 where it cannot.
        partial_s: a committee member's partial decryption; 0 without a committee.
    """

    seal_s: float = 0.0
    add_s: float = 0.0
    open_s: float = 0.0
    server_open_s: float = 0.0
    partial_s: float = 0.0


FREE = CryptoCosts()

#: PREAMBLE's seconds: sealing by coordinate (rotation, norm) and by byte of the report (DPF keys, HPKE); adding (both
#: aggregators expand the whole vector) and opening (noise, inverse rotation) by coordinate.
_PREAMBLE_SEAL_S = (60e-9, 100e-9)
_PREAMBLE_ADD_S, _PREAMBLE_OPEN_S = 20e-9, 200e-9


def crypto_costs(protection: str, mode: str, plan: Plan, budget: Budget) -> CryptoCosts:
    """Return what a protection costs in one round.

    Args:
        protection: its name.
        mode: ``public`` or ``symmetric``, where there is a choice.
        plan: the run's.
        budget: the run's, for the size of a report.
    """
    if protection == "plain":
        return FREE
    if protection == "preamble":
        seal_s = _PREAMBLE_SEAL_S[0] * plan.length + _PREAMBLE_SEAL_S[1] * budget.upload_bytes
        return CryptoCosts(seal_s, _PREAMBLE_ADD_S * plan.length, 0.0, _PREAMBLE_OPEN_S * plan.length)
    scheme = f"{protection}-public" if mode == "public" and protection in ("bfv", "ckks") else protection
    (row,) = sizes(plan.length, plan.clients, plan.bound, [scheme])
    if not row.fits:
        # The run's own parameters fit, as it was not refused; the table's do not, and one client's worth stands in.
        (row,) = sizes(plan.length, 1, min(plan.bound, 1.0), [scheme])
    add_s = row.add_s / max(plan.clients, 1)
    if protection == "openfhe-threshold":
        return CryptoCosts(row.seal_s, add_s, 0.0, row.open_s, row.open_s)
    return CryptoCosts(row.seal_s, add_s, row.open_s)
