"""``fedsim sizes --rank``: what DictPFL sends of a model, beside the whole of it."""

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from crypto.sizes import SizeRow


#: Sums that DictPFL cannot work under.
_REFUSED = ("openfhe-ckks", "openfhe-threshold", "preamble", "preamble-dense", "rlwe-threshold")


@dataclass(frozen=True, slots=True)
class DictRow:
    """One scheme's upload of a whole model and of DictPFL's tables.

    Attributes:
        scheme: its name.
        full_ciphertexts, dict_ciphertexts: number a client sends; 0 for schemes without.
        full_bytes, dict_bytes: bytes of one upload.
    """

    scheme: str
    full_ciphertexts: int
    dict_ciphertexts: int
    full_bytes: int
    dict_bytes: int

    @property
    def ratio(self) -> float:
        """How many times fewer bytes DictPFL sends."""
        return self.full_bytes / self.dict_bytes


def trained(model: str | None, rank: int, kept: float, assignments: list[str]) -> int:
    """Return how many coordinates DictPFL sends of a model.

    Args:
        model: a name, as ``fedsim sizes`` takes it; ``None`` for the settings' own.
        rank: of all dictionaries.
        kept: share of the trained coordinates that pruning leaves.
        assignments: settings that shape a model of ours.

    Raises:
        ConfigError: the model is only known by its number of parameters.
    """
    from crypto.sizes import MODELS
    from fedsim.config import load_config, to_run_config
    from fedsim.errors import ConfigError, Problem
    from fedsim.site import site_of
    from strategies.dict_sizes import LINEAR_LAYERS, table_entries

    if model is not None and model in LINEAR_LAYERS:
        return math.ceil(kept * table_entries(model, rank))
    if model in MODELS:
        known = f"the shapes of {', '.join(LINEAR_LAYERS)} are known, of the others only their number of parameters"
        raise ConfigError([Problem("--rank", str(rank), known, "take one of these, or a model of ours")])
    own = [*assignments, *([f"model.name={model}"] if model else []), "strategy.name=dictpfl", f"strategy.rank={rank}"]
    site = site_of(to_run_config(load_config(None, own)))
    layout = site.initial.layout.only(n for n in site.initial.layout.names if n not in site.buffer_names)
    return math.ceil(kept * layout.length)


def beside(full: "list[SizeRow]", tables: "list[SizeRow]") -> list[DictRow]:
    """Return the schemes that carry both, side by side; DictPFL needs sums that clients open, each to the same bits."""
    return [
        DictRow(a.scheme, a.ciphertexts, b.ciphertexts, a.upload_bytes, b.upload_bytes)
        for a, b in zip(full, tables, strict=True)
        if a.fits and b.fits and a.scheme not in _REFUSED
    ]


def as_values(row: DictRow) -> dict[str, str | int | float]:
    """Return a row's fields and its ratio, as JSON wants them."""
    return asdict(row) | {"ratio": row.ratio}


def table(rows: list[DictRow], title: str) -> "Table":
    """Lay out the rows."""
    from rich.table import Table

    from fedsim.measure.units import show_bytes

    shown = Table(title=title)
    for column in (
        "scheme",
        "ciphertexts, all weights",
        "ciphertexts, tables",
        "up, all weights",
        "up, tables",
        "ratio",
    ):
        shown.add_column(column, justify="left" if column == "scheme" else "right", no_wrap=True)
    for row in rows:
        counts = (f"{n:,}" if n else "" for n in (row.full_ciphertexts, row.dict_ciphertexts))
        shown.add_row(row.scheme, *counts, show_bytes(row.full_bytes), show_bytes(row.dict_bytes), f"{row.ratio:.0f}")
    return shown


__all__ = ["DictRow", "as_values", "beside", "table", "trained"]
