"""What DictPFL's tables come to for models that papers count, from the shapes of their linear layers alone."""

from collections.abc import Mapping

from strategies._dict_layers import Orient

Shape = tuple[int, int, int]

_VIT_B: tuple[Shape, ...] = ((48, 768, 768), (12, 3072, 768), (12, 768, 3072))

#: Model -> (how many, outputs, inputs) of the linear layers that are decomposed: all but embeddings and head.
LINEAR_LAYERS: Mapping[str, tuple[Shape, ...]] = {
    "vit-b16": _VIT_B,
    "bert-base": _VIT_B,
    # Grouped queries: 4 of 32 heads for key and value.
    "tinyllama-1.1b": ((44, 2048, 2048), (44, 256, 2048), (44, 5632, 2048), (22, 2048, 5632)),
}


def table_entries(model: str, rank: int, orient: Orient = "literal", head: int = 0) -> int:
    """Return the number of coordinates that train: rank times the columns of every layer's table, and the head.

    Args:
        model: one of :data:`LINEAR_LAYERS`.
        rank: at least 1; at most each layer's smaller side counts.
        orient: see :class:`~strategies._dict_layers.DictOptions`.
        head: parameters of the head.

    Raises:
        ValueError: the model's shapes are not known, or `rank` is below 1.
    """
    if model not in LINEAR_LAYERS:
        raise ValueError(f"model '{model}': the shapes of {', '.join(LINEAR_LAYERS)} are known")
    if rank < 1:
        raise ValueError(f"rank {rank} must be at least 1")
    return head + sum(
        count * min(rank, outputs, inputs) * (min(outputs, inputs) if orient == "auto" else inputs)
        for count, outputs, inputs in LINEAR_LAYERS[model]
    )


__all__ = ["LINEAR_LAYERS", "table_entries"]
