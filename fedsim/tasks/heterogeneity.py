"""How different clients' labels are: distances between each client's label law and the law of all examples."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedsim.tasks.errors import BadOption
from fedsim.tasks.training import EvalResult

__all__ = ["jensen_shannon", "label_emd", "local_accuracy", "similarity"]


def label_emd(label_histogram: NDArray[np.int64]) -> float:
    """Return the mean label earth mover's distance, ``sum_c |p_k(c) - p(c)|`` (Zhao et al. 2018, sec. 3.2).

    Args:
        label_histogram: shape ``(clients, classes)``, counts; not modified.

    Returns:
        The mean over examples (clients weighted by size; clients without examples count nothing): 0 for equal laws,
        below 2 always.

    Raises:
        BadOption: not a table of counts, or all counts are 0.
    """
    laws, common, weights = _laws(label_histogram)
    return float(weights @ np.abs(laws - common).sum(axis=1))


def jensen_shannon(label_histogram: NDArray[np.int64]) -> float:
    """Return the mean Jensen-Shannon distance (base 2, square root) of each client's label law to the common law.

    Arguments, weights and errors as in :func:`label_emd`; the value lies in [0, 1].
    """
    laws, common, weights = _laws(label_histogram)
    middle = (laws + common) / 2
    divergence = (_kl(laws, middle) + _kl(np.broadcast_to(common, laws.shape), middle)) / 2
    return float(weights @ np.sqrt(np.maximum(divergence, 0.0)))


def similarity(label_histogram: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the cosine of each two clients' label counts, shape ``(clients, clients)``.

    Args:
        label_histogram: shape ``(clients, classes)``, counts; not modified.

    Returns:
        1 for equal shares of labels, 0 for no common label; NaN in rows and columns of clients without examples.
    """
    counts = np.asarray(label_histogram, np.float64)
    norms = np.linalg.norm(counts, axis=1, keepdims=True)
    unit = np.divide(counts, norms, out=np.full_like(counts, np.nan), where=norms > 0)
    cosines: NDArray[np.float64] = unit @ unit.T
    return cosines


def local_accuracy(result: EvalResult, label_histogram: NDArray[np.int64], tiers: Sequence[str]) -> dict[str, float]:
    """Return how the global model serves clients whose labels differ.

    A client's accuracy is that of each class on the test set, weighted by the client's own shares of the classes, so
    that it needs no test set of its own; classes without test examples are left out.

    Args:
        result: of an evaluation on the test set.
        label_histogram: shape ``(clients, classes)``, counts; not modified.
        tiers: kind of device of each client.

    Returns:
        ``accuracy_clients_std`` and ``accuracy_worst_decile`` (mean of the worst tenth of the clients), and for several
        tiers ``accuracy_tier_<tier>``, means over clients with examples.
    """
    classes = min(len(result.class_total), label_histogram.shape[1])
    total = np.array(result.class_total[:classes], float)
    known = np.divide(result.class_correct[:classes], total, out=np.zeros(classes), where=total > 0)
    counts = label_histogram[:, :classes] * (total > 0)
    sizes = counts.sum(axis=1)
    held = np.flatnonzero(sizes > 0)
    if not held.size:
        return {}
    each = counts[held] @ known / sizes[held]
    worst = np.sort(each)[: max(1, len(each) // 10)]
    found = {"accuracy_clients_std": float(each.std()), "accuracy_worst_decile": float(worst.mean())}
    if len(set(tiers)) > 1:
        names = np.array(tiers)[held]
        found |= {f"accuracy_tier_{tier}": float(each[names == tier].mean()) for tier in sorted(set(names.tolist()))}
    return found


def _kl(p: NDArray[np.float64], q: NDArray[np.float64]) -> NDArray[np.float64]:
    ratio = np.divide(p, q, out=np.ones_like(p), where=p > 0)
    summed: NDArray[np.float64] = (p * np.log2(ratio)).sum(axis=1)
    return summed


def _laws(histogram: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    counts = np.asarray(histogram, np.float64)
    if counts.ndim != 2 or not counts.sum() > 0 or counts.min() < 0:
        raise BadOption(f"histogram of shape {counts.shape}: must be (clients, classes) counts with a positive sum")
    counts = counts[counts.sum(axis=1) > 0]
    sizes = counts.sum(axis=1)
    return counts / sizes[:, None], counts.sum(axis=0) / counts.sum(), sizes / sizes.sum()
