"""Describes how the training set was dealt out: who holds what, and how unequal it is."""

from typing import Any

from fedsim.site import Site
from fedsim.tasks.heterogeneity import jensen_shannon, label_emd


def describe_partition(site: Site) -> dict[str, Any]:
    """Return what ``partition.json`` holds.

    Keys: ``scheme``, ``sizes`` (rows by client), ``label_histogram`` (clients x classes), ``empty`` (clients without
    rows), ``moved`` (rows that the policy moved) and ``heterogeneity`` (mean earth mover's and Jensen-Shannon distance
    of the clients' label laws from the whole set's).
    """
    part = site.partition
    return {
        "scheme": site.config.data.scheme,
        "sizes": part.sizes.tolist(),
        "label_histogram": part.label_histogram.tolist(),
        "empty": part.empty,
        "moved": part.moved,
        "heterogeneity": {
            "label_emd": label_emd(part.label_histogram),
            "jensen_shannon": jensen_shannon(part.label_histogram),
        },
    }
