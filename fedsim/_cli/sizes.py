"""``fedsim sizes``: what each secure sum costs for a model and a number of clients, by formula."""

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from fedsim._cli import dict_sizes
from fedsim._cli.exits import exits

if TYPE_CHECKING:
    from rich.table import Table

    from crypto.sizes import SizeRow

#: Parameters of the largest model that is thought of here.
_MOST = 10**11
#: Smallest and largest bound: float32 ends a little beyond.
_SMALLEST, _LARGEST = 1e-37, 1e38
#: Of the table where the output is no terminal; a terminal's own width counts otherwise.
_WIDTH = 150


def sizes(
    model: Annotated[
        str | None,
        typer.Option("--model", help="A model that papers count (vit-b16, resnet18, ...), or one of ours (mlp, ...)."),
    ] = None,
    length: Annotated[
        int | None, typer.Option("--length", min=1, max=_MOST, help="Number of parameters, in place of a model.")
    ] = None,
    clients: Annotated[int | None, typer.Option("--clients", min=1, help="Vectors that are summed.")] = None,
    bound: Annotated[float | None, typer.Option("--bound", help="Largest absolute value of a parameter.")] = None,
    scheme: Annotated[list[str] | None, typer.Option("--scheme", help="Only this scheme; repeatable.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", metavar="SECTION.KEY=VALUE", help="Settings that shape a model of ours."),
    ] = None,
    rank: Annotated[
        int | None, typer.Option("--rank", min=1, help="Beside it, what DictPFL sends with dictionaries of this rank.")
    ] = None,
    kept: Annotated[
        float, typer.Option("--kept", min=0, max=1, help="With --rank: share of the tables that pruning leaves.")
    ] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="JSON for programs, on standard output.")] = False,
) -> None:
    """Show bytes, error, headroom, security and estimated seconds of each secure sum, beside published contexts."""
    with exits():
        from crypto.sizes import SCHEMES
        from crypto.sizes import sizes as sized
        from fedsim.config import load_config
        from fedsim.errors import ConfigError, Problem

        if model is not None and length is not None:
            given = f"{length} with --model {model}"
            raise ConfigError([Problem("--length", given, "a model has its own number of parameters", "give one only")])
        unknown = [name for name in scheme or [] if name not in SCHEMES]
        if unknown:
            known = f"must be one of {', '.join(SCHEMES)}"
            raise ConfigError([Problem("--scheme", name, known, "or leave it out to see all") for name in unknown])
        if bound is not None and not _SMALLEST <= bound <= _LARGEST:
            rule = f"must be a number from {_SMALLEST:g} to {_LARGEST:g}"
            raise ConfigError(
                [Problem("--bound", f"{bound:g}", rule, "give the largest absolute value of a parameter")]
            )
        if not 0 <= kept <= 1:
            raise ConfigError([Problem("--kept", f"{kept:g}", "must be a share, from 0 to 1", "correct it")])
        settings = load_config(None, set_ or [])
        summed = settings.federation.sampled if clients is None else clients
        limit = settings.protection.plan_bound if bound is None else bound
        parameters = length or parameters_of(model, set_ or [])
        rows = sized(parameters, summed, limit, scheme or None)
        if rank is not None and length is not None:
            rule = "is of a model, whose layers are known"
            raise ConfigError([Problem("--rank", f"{rank} with --length {length}", rule, "give --model, not --length")])
        tables = max(1, dict_sizes.trained(model, rank, kept, set_ or [])) if rank is not None else 0
        pairs = dict_sizes.beside(rows, sized(tables, summed, limit, scheme or None)) if tables else []
    if as_json:
        answer = {"parameters": parameters, "clients": summed, "rows": [as_values(row) for row in rows]}
        sent = {"dictpfl": {"parameters": tables, "rows": [dict_sizes.as_values(p) for p in pairs]}} if tables else {}
        typer.echo(json.dumps(answer | sent))
        return
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)
    subject = model or (f"{length} values" if length else settings.model.name)
    console.print(table(rows, f"{subject}: {parameters:,} parameters, {summed} clients, values within ±{limit:g}"))
    for row in rows:
        context = f"{row.context}; {row.note}" if row.note else row.context
        console.print(f"{row.scheme}: {context}", highlight=False, markup=False)
    if tables:
        share = f", {kept:.0%} of them sent" if kept < 1 else ""
        console.print(dict_sizes.table(pairs, f"DictPFL at rank {rank}: {tables:,} coordinates of the tables{share}"))


def parameters_of(model: str | None, assignments: list[str]) -> int:
    """Return a model's number of parameters: from the published list, or counted on the model as built.

    Args:
        model: a name; ``None`` for the settings' own.
        assignments: settings that shape a model of ours.

    Raises:
        ConfigError: neither list has the name.
    """
    from crypto.sizes import MODELS

    if model in MODELS:
        return MODELS[model]
    from fedsim.config import load_config, to_run_config
    from fedsim.errors import ConfigError, Problem
    from fedsim.site import site_of
    from fedsim.tasks.models import list_models

    known = sorted([*MODELS, *list_models()])
    if model is not None and model not in known:
        raise ConfigError([Problem("--model", model, f"must be one of {', '.join(known)}", "or give --length")])
    settings = load_config(None, [*assignments, *([f"model.name={model}"] if model else [])])
    return site_of(to_run_config(settings)).initial.layout.length


def as_values(row: "SizeRow") -> dict[str, str | int | float | None]:
    """Return a row's fields with ``None`` for what is not known, as JSON wants it."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(row).items()}


def table(rows: "list[SizeRow]", title: str) -> "Table":
    """Lay out the rows."""
    from rich.table import Table

    from fedsim.measure.units import MISSING, show_bytes, show_s

    shown = Table(title=title)
    columns = (
        "scheme",
        "up",
        "down",
        "times float32",
        "error",
        "headroom",
        "security",
        "ciphertexts",
        "seal",
        "add",
        "open",
    )
    for column in columns:
        shown.add_column(column, justify="left" if column == "scheme" else "right", no_wrap=column == "scheme")
    for row in rows:
        if not row.fits:
            shown.add_row(row.scheme, "refused")
            continue
        shown.add_row(
            row.scheme,
            show_bytes(row.upload_bytes),
            show_bytes(row.download_bytes),
            f"{row.expansion:.2f}",
            f"{row.error_bound:.2g}" if math.isfinite(row.error_bound) else MISSING,
            f"{row.headroom_bits:.1f} bits" if math.isfinite(row.headroom_bits) else MISSING,
            f"{row.security_bits} bits" if row.security_bits else "none",
            f"{row.ciphertexts:,}" if row.ciphertexts else MISSING,
            *(show_s(s) for s in (row.seal_s, row.add_s, row.open_s)),
        )
    return shown


__all__ = ["as_values", "parameters_of", "sizes", "table"]
