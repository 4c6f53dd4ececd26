"""Who stands behind a block's mean? Clients of a block, and how far their labels are from all clients' labels.

``python -m experiments.leff.cover experiments/configs/papers/leff_minilm.toml`` draws the windows of the file's tiers
for its rounds, each as likely as the other, and trains nothing. Full training averages every block over all clients. A
window's block is averaged over a few; where those few know one class alone, so does the block.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedsim.config import LeffConfig, RunConfig, load_config
from fedsim.site import Site
from strategies._leff_windows import draw_start, window_probabilities

__all__ = ["Cover", "cover", "distance", "main"]


@dataclass(frozen=True)
class Cover:
    """Means over rounds and blocks.

    Attributes:
        clients: that train a block.
        distance: :func:`distance` of the clients behind a block.
        far: share of blocks of which that is above 0.25.
    """

    clients: float
    distance: float
    far: float


def distance(counts: NDArray[np.int64], members: Sequence[int]) -> float:
    """Return half the sum of absolute differences of class shares, of some clients and of all.

    Args:
        counts: examples by client and class, shape ``(clients, classes)``.
        members: clients.
    """
    some, whole = counts[list(members)].sum(axis=0), counts.sum(axis=0)
    return float(np.abs(some / some.sum() - whole / whole.sum()).sum() / 2)


def cover(counts: NDArray[np.int64], lengths: Sequence[int], layers: int, rounds: int, seed: int) -> Cover:
    """Return the cover of windows of these lengths, one a client and round.

    Args:
        counts: as in :func:`distance`.
        lengths: blocks of each client's window, at most `layers`.
        layers, rounds, seed: of the run.
    """
    found = []
    for server_round in range(1, rounds + 1):
        members: list[list[int]] = [[] for _ in range(layers)]
        for client, length in enumerate(lengths):
            start = draw_start(window_probabilities(np.zeros(layers), length), seed, server_round, client)
            for block in range(start, start + length):
                members[block].append(client)
        found += [(len(own), distance(counts, own)) for own in members if own]
    clients, distances = np.array(found).T
    return Cover(float(clients.mean()), float(distances.mean()), float((distances > _FAR).mean()))


def of_run(config: RunConfig, layers: int) -> Cover:
    """Return the cover of a run's settings."""
    strategy = config.strategy
    assert isinstance(strategy, LeffConfig)
    site = Site(config)
    labels, classes = site.dataset.train_y, site.dataset.num_classes
    counts = np.array([np.bincount(labels[rows], minlength=classes) for rows in site.partition.indices])
    tiers = strategy.tiers
    lengths = [min(tiers[client % len(tiers)], layers) for client in range(len(counts))]
    return cover(counts, lengths, layers, config.federation.rounds, config.seed)


_FAR = 0.25


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    args = parser.parse_args()
    for seed in args.seeds:
        found = of_run(load_config(args.config, [f"seed={seed}", *args.set]), args.layers)
        print(
            f"seed {seed}: {found.clients:.2f} clients a block, class shares {found.distance:.3f} from all clients', "
            f"over {_FAR} in {found.far:.0%} of the blocks"
        )


if __name__ == "__main__":
    main()
