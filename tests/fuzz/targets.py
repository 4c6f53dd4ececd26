"""Every decoder that reads bytes of others or of a disk, with good inputs and the errors that it may raise.

A target is a function of bytes. It returns or raises an error that it promises; anything else is a fault, and so is a
process that ends. `forge` puts a right checksum over damaged content, so that what stands behind it is reached.
"""

from collections.abc import Callable, Iterator
from functools import cache

import file_targets as files
import record_targets as records
import rlwe_targets as rlwe
import site_targets as sites
import sum_targets as sums
from kit import Target

MAKERS: dict[str, Callable[[], Target]] = {
    "frames": sums.frames,
    "key files": sums.key_files,
    "bfv ciphertexts": lambda: sums.ciphertexts("bfv"),
    "ckks ciphertexts": lambda: sums.ciphertexts("ckks"),
    "rlwe frames": lambda: rlwe.frames("symmetric"),
    "rlwe public frames": lambda: rlwe.frames("public"),
    "rlwe keys": rlwe.keys,
    "committee frames": rlwe.committee_frames,
    "committee set-up": rlwe.set_up,
    "openfhe residues": sums.openfhe_residues,
    "dpf leader parts": sums.dpf_leader,
    "dpf relayed parts": sums.dpf_relayed,
    "dpf bodies": sums.dpf_body,
    "norm proofs": sums.norm_proofs,
    "helper requests": sums.helper_requests,
    "models": records.models,
    "model records": records.model_records,
    "round plans": records.plans,
    "sealed states": records.sealed_states,
    "client replies": records.replies,
    "checkpoints": files.checkpoints,
    "client states": files.client_states,
    "settings": files.settings,
    "flat settings": files.flat_settings,
    "ledger csv": lambda: files.tables("csv"),
    "ledger parquet": lambda: files.tables("parquet"),
    "run records": files.run_records,
    "partitions": files.partitions,
    "helper tasks": files.helper_tasks,
    "idx files": files.idx_files,
    "devices csv": lambda: sites.devices("csv"),
    "devices parquet": lambda: sites.devices("parquet"),
    "presence csv": lambda: sites.presence("csv"),
    "presence parquet": lambda: sites.presence("parquet"),
    "fedscale capacity": sites.fedscale_capacity,
    "fedscale behaviour": sites.fedscale_behaviour,
    "environment files": sites.environment_files,
    "node files": sites.node_files,
    "identities": sites.identities,
    "proxy logs": sites.proxy_logs,
    "kept keys": sites.kept_keys,
    "releases": sites.releases,
    "helper accounts": sites.helper_accounts,
    "sweeps": sites.sweeps,
    "trial states": sites.trial_states,
}


def names() -> Iterator[str]:
    """Return the targets' names, in their order."""
    yield from MAKERS


@cache
def target(name: str) -> Target:
    """Return a target, made once a process."""
    return MAKERS[name]()
