"""Whether the clients of a process train one by one or together, and the step from one to the other.

Together is faster where layers are small, see :mod:`fedsim.tasks.cohort`, and slower where they are large; which, is
measured once before a run and noted in its record, so that a run and its resumption do the same everywhere.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedsim.simulation.together import meet, meeting
from fedsim.site import Site
from fedsim.tasks.cohort import Member, Trained, train_cohort
from fedsim.tasks.training import TrainConfig, TrainResult, client_seed, train
from strategies.records import NamedArrays

#: Of the loop's time: a cohort must save this much to be chosen, or noise would choose.
_WORTH = 0.85
_TRIALS = 3


@dataclass(frozen=True, slots=True)
class _Training:
    """A client's request to be trained."""

    site: Site
    member: Member
    config: TrainConfig
    round: int

    #: What a handler does after its training draws nothing from the process's generators.
    draws_afterwards: ClassVar[bool] = False

    @classmethod
    def serve(cls, requests: "Sequence[_Training]") -> "list[tuple[Trained, float]]":
        """Train clients of equal settings together; each gets its share of the seconds."""
        answers: dict[int, tuple[Trained, float]] = {}
        groups: dict[Any, list[int]] = {}
        for i, request in enumerate(requests):
            groups.setdefault((id(request.site), request.config, request.round), []).append(i)
        for places in groups.values():
            some = [requests[i] for i in places]
            start_s = time.perf_counter()
            trained = train_cohort(
                some[0].site.model,
                [one.member for one in some],
                some[0].config,
                round=some[0].round,
                flops_per_example=some[0].site.flops_of(some[0].site.model),
            )
            share_s = (time.perf_counter() - start_s) / len(some)
            answers |= {i: (one, share_s) for i, one in zip(places, trained, strict=True)}
        return [answers[i] for i in range(len(requests))]


def train_here(
    site: Site, model: nn.Module, x: Tensor, y: Tensor, config: TrainConfig, *, seed: int, round: int
) -> tuple[TrainResult, float | None]:
    """Train a model, which holds the client's start, on its data: alone, or together with those it meets.

    Args:
        site: of the process.
        model: its resident model, or one of the client's own, which is trained alone.
        x: the client's examples.
        y: their labels.
        config: the local training's settings.
        seed: of this client in this round.
        round: server round.

    Returns:
        The result, and the seconds that are this client's where it trained with others, else ``None``.
    """
    if model is not site.model or not meeting() or site.why_alone:
        flops = site.flops_of(model)
        return train(model, x, y, config, seed=seed, round=round, flops_per_example=flops), None
    start_s = time.perf_counter()
    start = {name: p.detach().clone() for name, p in site.model.named_parameters() if p.requires_grad}
    request = _Training(site, Member(x, y, seed, start), config, round)
    own_s = time.perf_counter() - start_s
    trained, share_s = meet(request)
    start_s = time.perf_counter()
    with torch.no_grad():
        for name, parameter in site.model.named_parameters():
            if name in trained.weights:
                parameter.copy_(trained.weights[name])
    return trained.result, own_s + share_s + time.perf_counter() - start_s


def trains_together(site: Site) -> bool:
    """Return whether the caller, a client's handler, may call :func:`train_from`."""
    return meeting() and not site.why_alone


def train_from(
    site: Site, before: NamedArrays, x: Tensor, y: Tensor, config: TrainConfig, *, seed: int, round: int
) -> tuple[TrainResult, NamedArrays, float]:
    """Train from a state together with those whom the caller meets.

    Args:
        site: of the process; its resident model is changed.
        before: the state to start from, of the site's model.
        x: the client's examples.
        y: their labels.
        config: the local training's settings.
        seed: of this client in this round.
        round: server round.

    Returns:
        The result, the state afterwards (arrays may share memory with others' of the cohort), and the seconds that are
        this client's.

    Raises:
        StateMismatch: the state is not the model's.
    """
    start_s = time.perf_counter()
    request = _Training(site, Member(x, y, seed, site.tensors_of(before)), config, round)
    own_s = time.perf_counter() - start_s
    trained, share_s = meet(request)
    start_s = time.perf_counter()
    arrays: dict[str, NDArray[np.generic]] = {
        name: _to_numpy(trained.weights[name]) if name in trained.weights else array
        for name, array in before.arrays.items()
    }
    after = NamedArrays(arrays, dict(before.dtypes))
    return trained.result, after, own_s + share_s + time.perf_counter() - start_s


def _to_numpy(tensor: Tensor) -> NDArray[np.generic]:
    plain = tensor if tensor.is_cpu else tensor.cpu()
    array: NDArray[np.generic] = (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()
    return array


def choose_cohort(site: Site) -> tuple[bool, str]:
    """Return whether a run's clients train together, and why: as set, or by a trial on the first clients' data.

    The trial does not touch the model's weights.
    """
    wish = site.config.engine.cohort
    if wish == "off":
        return False, "as set"
    if site.why_alone:
        return False, site.why_alone
    if wish == "on":
        return True, "as set"
    loop_s, cohort_s = _trial(site)
    ratio = cohort_s / loop_s
    return ratio < _WORTH, f"a trial took {ratio:.2f} of the loop's time"


def _trial(site: Site) -> tuple[float, float]:
    """Return the CPU seconds of the loop and of the cohort for one chunk of clients, the best of some trials each."""
    from fedsim.registry import train_config

    clients = [c for c in range(site.config.federation.num_clients) if len(site.partition.indices[c])]
    chosen = clients[: min(site.config.engine.chunk, site.config.federation.sampled)]
    config = train_config(site.config, site.config.federation.rounds)
    start = {name: p.detach().clone() for name, p in site.model.named_parameters()}
    members = [Member(*site.train_data(c), client_seed(site.config.seed, 1, c), start) for c in chosen]
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(_TRIALS):
        begun_s = time.process_time()
        for one in members:
            train(site.model, one.x, one.y, config, seed=one.seed, round=1)
        times[0].append(time.process_time() - begun_s)
        with torch.no_grad():
            for name, parameter in site.model.named_parameters():
                parameter.copy_(start[name])
        begun_s = time.process_time()
        train_cohort(site.model, members, config, round=1)
        times[1].append(time.process_time() - begun_s)
    return min(times[0]), min(times[1])


__all__ = ["choose_cohort", "train_from", "train_here", "trains_together"]
