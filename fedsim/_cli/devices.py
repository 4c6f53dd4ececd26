"""``fedsim devices``: lists the presets, shows what devices a run's clients have, and imports FedScale's traces."""

import json
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from fedsim._cli.exits import exits, writing

ConfigFile = Annotated[Path | None, typer.Argument(help="Settings of the run as TOML; without one, the defaults.")]
Sets = Annotated[
    list[str] | None, typer.Option("--set", "-s", metavar="SECTION.KEY=VALUE", help="Override one setting; repeatable.")
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON for programs, on standard output.")]


def devices(
    config: ConfigFile = None,
    set_: Sets = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write one row a client, CSV or Parquet by the suffix.")
    ] = None,
    fedscale: Annotated[
        Path | None, typer.Option("--fedscale", help="FedScale's client_device_capacity: written to --out instead.")
    ] = None,
    behaviour: Annotated[
        Path | None, typer.Option("--behaviour", help="FedScale's client_behave_trace: written to --out instead.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List device presets with their sources; with settings or --out, the devices of a run's clients."""
    with exits():
        if fedscale is not None or behaviour is not None:
            typer.echo(_import(fedscale, behaviour, out))
        elif config is None and not set_ and out is None:
            typer.echo(json.dumps(_presets()) if as_json else _presets_text())
        else:
            typer.echo(_of_run(config, set_ or [], out, as_json))


def _import(fedscale: Path | None, behaviour: Path | None, out: Path | None) -> str:
    from fedsim.errors import ConfigError, Problem
    from fedsim.simulation.devices import write_devices
    from fedsim.simulation.fedscale import import_behaviour, import_capacity, write_presence

    if out is None or (fedscale is not None and behaviour is not None):
        raise ConfigError([Problem("--out", str(out), "takes one trace in one file", "import them one after another")])
    if fedscale is not None:
        found = import_capacity(fedscale)
        with writing(out):
            write_devices(found, out, clients=False)
        return f"{len(found)} devices: {out}; use it by devices.profile=trace, devices.trace={out}"
    assert behaviour is not None
    rows = import_behaviour(behaviour)
    with writing(out):
        write_presence(rows, out)
    return f"{len(rows)} intervals: {out}; use it by devices.availability_trace={out}"


def _presets() -> list[dict[str, Any]]:
    from fedsim.simulation.devices import SOURCES, devices_table

    rows = devices_table([device for device, _ in SOURCES.values()])
    return [
        {key: value for key, value in row.items() if key != "client"} | {"source": source}
        for row, (_, source) in zip(rows, SOURCES.values(), strict=True)
    ]


def _presets_text() -> str:
    from fedsim.simulation.devices import NETWORKS

    head = f"{'device':<19}{'GFLOP/s':>9}{'cores':>6}{'memory':>9}{'down':>8}{'up':>8} Mbit/s  source"
    lines = [head]
    for row in _presets():
        lines.append(
            f"{row['tier']:<19}{row['flops_per_s'] / 1e9:>9.4g}{row['cores']:>6}{row['memory_bytes'] / 2**30:>6.3g} GB"
            f"{row['downlink_bit_s'] / 1e6:>8g}{row['uplink_bit_s'] / 1e6:>8g}         {row['source']}"
        )
    lines += ["", f"{'network':<19}{'down':>8}{'up':>8} Mbit/s{'latency':>10}  source"]
    for name, n in NETWORKS.items():
        link = f"{n.downlink_bit_s / 1e6:>8g}{n.uplink_bit_s / 1e6:>8g}       "
        lines.append(f"{name:<19}{link}{1000 * n.latency_s:>7g} ms  {n.source}")
    return "\n".join(lines)


def _of_run(config: Path | None, assignments: list[str], out: Path | None, as_json: bool) -> str:
    from fedsim.clocks import devices_of
    from fedsim.config import load_config
    from fedsim.simulation.devices import devices_table, write_devices

    found = devices_of(load_config(config, assignments))
    if out is not None:
        with writing(out):
            write_devices(found, out)
    if as_json:
        return json.dumps(devices_table(found))
    lines = [f"{count:>5} x {tier}" for tier, count in Counter(device.tier for device in found).items()]
    for name, unit, size in (("flops_per_s", "GFLOP/s", 1e9), ("uplink_bit_s", "Mbit/s up", 1e6)):
        values = sorted(getattr(device, name) / size for device in found)
        middle = values[len(values) // 2]
        lines.append(f"{unit}: least {values[0]:.4g}, median {middle:.4g}, most {values[-1]:.4g}")
    return "\n".join([*lines, *([f"written to {out}"] if out else [])])


__all__ = ["devices"]
