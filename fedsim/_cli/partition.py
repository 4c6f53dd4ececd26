"""``fedsim partition``: shows who would hold what, before anything is trained."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from fedsim._cli.exits import exits, writing

ConfigFile = Annotated[Path | None, typer.Argument(help="Settings of the run as TOML; without one, the defaults.")]
Sets = Annotated[
    list[str] | None, typer.Option("--set", "-s", metavar="SECTION.KEY=VALUE", help="Override one setting; repeatable.")
]
#: Clients whose rows are printed.
_SHOWN = 40


def partition(
    config: ConfigFile = None,
    set_: Sets = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for label_histogram.png and similarity.png.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON for programs, on standard output.")] = False,
) -> None:
    """Show how a run's data is dealt out: sizes, labels, empty clients, and how unequal the clients are."""
    with exits():
        view = _view(config, set_ or [])
        drawn = _draw(view, out) if out is not None else []
        typer.echo(json.dumps(view) if as_json else _text(view))
        if not as_json:
            for path in drawn:
                typer.echo(f"picture: {path}")


def _view(config: Path | None, assignments: list[str]) -> dict[str, Any]:
    import numpy as np

    from fedsim.config import load_config, to_run_config
    from fedsim.site import site_of
    from fedsim.tasks.heterogeneity import jensen_shannon, label_emd, similarity

    settings = load_config(config, assignments)
    part = site_of(to_run_config(settings)).partition
    alike = similarity(part.label_histogram)
    upper = alike[np.triu_indices(len(alike), 1)]
    return {
        "scheme": settings.data.scheme,
        "options": settings.data.scheme_options,
        "sizes": part.sizes.tolist(),
        "empty": part.empty,
        "moved": part.moved,
        "histogram": part.label_histogram.tolist(),
        "measures": {
            "label_emd": label_emd(part.label_histogram),
            "jensen_shannon": jensen_shannon(part.label_histogram),
            "mean_similarity": float(np.nanmean(upper)) if np.isfinite(upper).any() else 1.0,
        },
        "similarity": [[None if cell != cell else cell for cell in row] for row in alike.tolist()],
    }


def _draw(view: dict[str, Any], folder: Path) -> list[Path]:
    from fedsim.measure.pages import Heat, write_png

    counts = [[cell or None for cell in row] for row in view["histogram"]]
    clients = list(range(len(counts)))
    labels = Heat(
        key="label_histogram",
        group="Clients",
        y_label="client",
        y=clients,
        title="Who holds what",
        note="Training examples of each client by label; blank where there are none.",
        x_label="label",
        x=[str(label) for label in range(len(counts[0]))],
        z=counts,
        z_label="examples",
    )
    alike = Heat(
        key="similarity",
        group="Clients",
        y_label="client",
        y=clients,
        title="How alike clients are",
        note="Cosine of the two clients' label counts: 1 for equal shares, 0 for no common label.",
        x_label="client",
        x=clients,
        z=view["similarity"],
        z_label="cosine",
    )
    paths = []
    for chart in (labels, alike):
        with writing(folder):
            write_png(chart, folder / f"{chart.key}.png")
        paths.append(folder / f"{chart.key}.png")
    return paths


def _text(view: dict[str, Any]) -> str:
    sizes, measures = view["sizes"], view["measures"]
    options = "".join(f", {name} {value:g}" for name, value in view["options"].items())
    lines = [f"{len(sizes)} clients, {sum(sizes)} examples, {view['scheme']}{options}"]
    ordered = sorted(sizes)
    lines.append(f"sizes: least {ordered[0]}, median {ordered[len(ordered) // 2]}, most {ordered[-1]}")
    empty = ", ".join(map(str, view["empty"][:_SHOWN])) + (" ..." if len(view["empty"]) > _SHOWN else "")
    lines.append(f"empty: {len(view['empty'])}{': ' + empty if empty else ''}; moved by the policy: {view['moved']}")
    lines.append(
        f"skew: label EMD {measures['label_emd']:.3f} of 2, Jensen-Shannon {measures['jensen_shannon']:.3f} of 1, "
        f"mean similarity {measures['mean_similarity']:.3f}"
    )
    width = max(len(str(cell)) for row in view["histogram"] for cell in row) + 1
    lines.append("client  size  by label")
    for client, row in enumerate(view["histogram"][:_SHOWN]):
        lines.append(f"{client:>6}{sizes[client]:>6}  " + "".join(f"{cell or '.':>{width}}" for cell in row))
    if len(sizes) > _SHOWN:
        lines.append(f"and {len(sizes) - _SHOWN} more; --json has them all")
    return "\n".join(lines)


__all__ = ["partition"]
