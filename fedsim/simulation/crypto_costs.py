"""Seconds that a run's protection costs, as constants: measured once, on the core that counts 1.

Homomorphic schemes: ciphertexts times the cost of one (:data:`crypto.sizes.COSTS`). PREAMBLE: seconds a coordinate of
the padded vector (:data:`crypto.sizes.PREAMBLE_COSTS`). Packing and adding in the clear count nothing.
"""

from dataclasses import dataclass

from crypto.base import Plan
from crypto.sizes import PREAMBLE_COSTS, sizes

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


def crypto_costs(protection: str, mode: str, plan: Plan) -> CryptoCosts:
    """Return what a protection costs in one round.

    Args:
        protection: its name.
        mode: ``public`` or ``symmetric``, or ``dense`` for PREAMBLE, where there is a choice.
        plan: the run's.
    """
    if protection == "plain":
        return FREE
    if protection == "preamble":
        padded = 1 << max(plan.length - 1, 0).bit_length()
        seal_s, add_s, open_s = PREAMBLE_COSTS["preamble-dense" if mode == "dense" else "preamble"]
        return CryptoCosts(seal_s * padded, add_s * padded, 0.0, open_s * padded)
    scheme = f"{protection}-public" if mode == "public" and protection in ("bfv", "ckks", "rlwe") else protection
    (row,) = sizes(plan.length, plan.clients, plan.bound, [scheme])
    if not row.fits:
        # The run's own parameters fit, as it was not refused; the table's do not, and one client's worth stands in.
        (row,) = sizes(plan.length, 1, min(plan.bound, 1.0), [scheme])
    add_s = row.add_s / max(plan.clients, 1)
    if protection.endswith("-threshold"):
        return CryptoCosts(row.seal_s, add_s, 0.0, row.open_s, row.open_s)
    return CryptoCosts(row.seal_s, add_s, row.open_s)
