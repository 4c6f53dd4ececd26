"""What devices the clients are: presets, laws, and files.

Speeds of CPUs are those of High-Performance Linpack in J. Geerling's public list (github.com/geerlingguy/
top500-benchmark). Linpack counts double precision; single precision has twice the peak, of which training is taken to
reach half, so its figure stands as it is. Phones are boards with the same cores. GPUs are 0.3 of the vendor's
single-precision peak. Networks are WebPageTest's connection profiles where it has them, else round numbers.

A file of devices (CSV or Parquet) has the columns of :class:`Device`, in any order: ``tier``, ``flops_per_s``,
``memory_bytes``, ``cores``, ``downlink_bit_s``, ``uplink_bit_s``, ``latency_s``, ``availability``, ``crypto_speed``,
``compute_w``, ``radio_w``; those after ``flops_per_s``, ``downlink_bit_s``, ``uplink_bit_s`` may be left out. With a
column ``client`` each row is that client's; without one, rows are dealt to clients from the run's seed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedsim.simulation.errors import BadTrace

__all__ = [
    "CORE_FLOP_S",
    "NETWORKS",
    "PRESETS",
    "Device",
    "Network",
    "deal",
    "devices_table",
    "read_devices",
    "read_rows",
    "whole",
    "write_devices",
]

#: Speed of the core on which the costs of cryptography were measured (:mod:`crypto.sizes`), in Linpack's terms.
CORE_FLOP_S = 2e10
#: First entry of the seed sequence, so that other users of the run's seed draw other numbers.
_SEED_DOMAIN = 0x64657669


@dataclass(frozen=True, slots=True)
class Network:
    """A way to the server.

    Attributes:
        downlink_bit_s, uplink_bit_s: bandwidth in bit/s, seen from the client.
        latency_s: one way, in seconds.
        source: where the figures come from.
    """

    downlink_bit_s: float
    uplink_bit_s: float
    latency_s: float
    source: str


_WPT = "WebPageTest connection profile, half of its round trip"
NETWORKS = {
    "3g": Network(1.6e6, 768e3, 0.150, f"{_WPT}: 3G"),
    "4g": Network(9e6, 9e6, 0.085, f"{_WPT}: 4G"),
    "lte": Network(12e6, 12e6, 0.035, f"{_WPT}: LTE"),
    "cable": Network(5e6, 1e6, 0.014, f"{_WPT}: Cable"),
    "fibre": Network(20e6, 5e6, 0.002, f"{_WPT}: FIOS"),
    "wifi": Network(50e6, 20e6, 0.005, "round numbers for a shared home network"),
    "wan": Network(100e6, 100e6, 0.020, "round numbers for sites on the internet"),
    "lan": Network(1e9, 1e9, 0.0002, "gigabit Ethernet"),
    "datacentre": Network(10e9, 10e9, 0.0001, "10-gigabit Ethernet"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One client's device.

    Attributes:
        tier: its kind, for tables by tier.
        flops_per_s: floating-point operations a second that training sustains.
        memory_bytes: memory; 0 if unknown.
        cores: of the processor; cryptography takes one.
        downlink_bit_s, uplink_bit_s: bandwidth, bit/s.
        latency_s: one way, seconds.
        availability: share of the rounds in which it can be asked, in (0, 1].
        crypto_speed: speed of one core over that of :data:`CORE_FLOP_S`; 0 derives it from speed and cores.
        compute_w, radio_w: power while it computes and while it sends or receives, in watts; 0 if unknown.

    Raises:
        BadTrace: a value is out of range.
    """

    tier: str
    flops_per_s: float
    downlink_bit_s: float
    uplink_bit_s: float
    latency_s: float = 0.0
    memory_bytes: int = 0
    cores: int = 1
    availability: float = 1.0
    crypto_speed: float = 0.0
    compute_w: float = 0.0
    radio_w: float = 0.0

    def __post_init__(self) -> None:
        for name in ("flops_per_s", "downlink_bit_s", "uplink_bit_s", "cores", "availability"):
            if not 0 < getattr(self, name) < math.inf:
                raise BadTrace(f"device {self.tier!r}: {name} is {getattr(self, name)}; it must be above 0, correct it")
        for name in ("latency_s", "memory_bytes", "crypto_speed", "compute_w", "radio_w"):
            if not 0 <= getattr(self, name) < math.inf:
                raise BadTrace(f"device {self.tier!r}: {name} is {getattr(self, name)}; it is finite and at least 0")
        if self.availability > 1:
            raise BadTrace(f"device {self.tier!r}: availability {self.availability} is a share; it is at most 1")

    @property
    def core_speed(self) -> float:
        """Speed of one core, 1 for the core on which cryptography was measured."""
        return self.crypto_speed or self.flops_per_s / self.cores / CORE_FLOP_S

    def on(self, network: str) -> "Device":
        """Return the device in another network."""
        n = NETWORKS[network]
        return replace(self, downlink_bit_s=n.downlink_bit_s, uplink_bit_s=n.uplink_bit_s, latency_s=n.latency_s)


def _preset(
    tier: str, gflops: float, cores: int, memory_gb: float, network: str, watts: float = 0.0, crypto: float = 0.0
) -> Device:
    n = NETWORKS[network]
    return Device(
        tier=tier,
        flops_per_s=gflops * 1e9,
        downlink_bit_s=n.downlink_bit_s,
        uplink_bit_s=n.uplink_bit_s,
        latency_s=n.latency_s,
        memory_bytes=round(memory_gb * 2**30),
        cores=cores,
        crypto_speed=crypto,
        compute_w=watts,
    )


_HPL = "Linpack list"
#: Name -> (device, where its speed comes from).
SOURCES: dict[str, tuple[Device, str]] = {
    "phone-low": (_preset("phone-low", 5.604, 4, 2, "3g", 4.0), f"{_HPL}: RK3566, 4 A55 cores"),
    "phone-mid": (_preset("phone-mid", 53.333, 8, 6, "4g", 11.5), f"{_HPL}: RK3588S, 4 A76 and 4 A55 cores"),
    "phone-high": (
        _preset("phone-high", 104.68, 8, 8, "lte"),
        f"{_HPL}: M2 in a MacBook Air, for a phone's fast cores",
    ),
    "raspberry-pi-zero2": (_preset("raspberry-pi-zero2", 0.370, 4, 0.5, "wifi", 2.1), f"{_HPL}: Raspberry Pi Zero 2 W"),
    "raspberry-pi-4": (_preset("raspberry-pi-4", 11.889, 4, 4, "wifi", 7.2), f"{_HPL}: Raspberry Pi 4, 1.8 GHz"),
    "raspberry-pi-5": (_preset("raspberry-pi-5", 30.249, 4, 8, "wifi", 11.0), f"{_HPL}: Raspberry Pi 5, 2.4 GHz"),
    "jetson-nano": (_preset("jetson-nano", 71, 4, 4, "lan", 10.0, 0.15), "0.3 of 236 GFLOP/s (NVIDIA: 472 in half)"),
    "jetson-orin-nano": (_preset("jetson-orin-nano", 384, 6, 8, "lan", 15.0, 0.6), "0.3 of 1.28 TFLOP/s (NVIDIA)"),
    "laptop": (_preset("laptop", 104.68, 8, 16, "wifi"), f"{_HPL}: M2 MacBook Air"),
    "desktop": (_preset("desktop", 229, 6, 32, "fibre", 196), f"{_HPL}: Ryzen 5 5600X"),
    "server": (_preset("server", 655.9, 64, 256, "datacentre", 140, 0.5), f"{_HPL}: Ampere Altra Q64-22, 64 cores"),
    "silo-lan": (_preset("silo-lan", 655.9, 64, 256, "lan", 140, 0.5), "the server, in one building"),
    "silo-wan": (_preset("silo-wan", 655.9, 64, 256, "wan", 140, 0.5), "the server, at another site"),
    "gpu-server": (_preset("gpu-server", 5850, 64, 512, "wan", 400, 0.5), "0.3 of 19.5 TFLOP/s (NVIDIA: A100)"),
}
PRESETS: dict[str, Device] = {name: device for name, (device, _) in SOURCES.items()}


def deal(
    num_clients: int,
    seed: int,
    profile: str = "uniform",
    *,
    preset: str = "laptop",
    network: str | None = None,
    tiers: Mapping[str, float] | None = None,
    sigma: float = 0.5,
    network_sigma: float = 0.5,
    exponent: float = 1.0,
    availability: float = 1.0,
    trace: str | Path | None = None,
) -> list[Device]:
    """Return each client's device; the same arguments and seed give the same devices.

    Args:
        num_clients: number of clients.
        seed: of the run.
        profile: ``uniform`` all the preset; ``tiers`` presets by shares, numbers as near to them as whole clients
            allow; ``log-normal`` speed and bandwidth around the preset; ``zipf`` by rank; ``trace`` from a file.
        preset: a key of :data:`PRESETS`.
        network: a key of :data:`NETWORKS` for all.
        tiers: preset -> share.
        sigma, network_sigma: of the log-normal laws.
        exponent: of the zipf law.
        availability: times each device's own.
        trace: a file, see the module.

    Raises:
        BadTrace: the file cannot be used.
    """
    rng = np.random.default_rng([_SEED_DOMAIN, seed])
    base = PRESETS[preset]
    if profile == "tiers":
        found = _by_share(num_clients, tiers or {}, rng)
    elif profile == "trace":
        found = _from_file(num_clients, Path(trace or ""), rng)
    else:
        found = [base] * num_clients
    if network is not None:
        found = [device.on(network) for device in found]
    try:
        # What leaves the range of floats is refused with the device.
        with np.errstate(over="ignore", under="ignore"):
            found = _spread(found, profile, rng, sigma, network_sigma, exponent)
    except BadTrace as error:
        asked = (
            f"exponent = {exponent:g}" if profile == "zipf" else f"sigma = {sigma:g}, network_sigma = {network_sigma:g}"
        )
        raise BadTrace(f"devices.{asked} is too wide a law: {error}, or lower it") from None
    if availability == 1.0:
        return found
    return [replace(device, availability=availability * device.availability) for device in found]


def _spread(
    found: list[Device],
    profile: str,
    rng: np.random.Generator,
    sigma: float,
    network_sigma: float,
    exponent: float,
) -> list[Device]:
    if profile == "log-normal":
        speed = np.exp(sigma * rng.standard_normal(len(found)))
        link = np.exp(network_sigma * rng.standard_normal(len(found)))
        return [_scaled(d, float(s), float(n)) for d, s, n in zip(found, speed, link, strict=True)]
    if profile == "zipf":
        factors = (1.0 + rng.permutation(len(found))) ** -exponent
        return [_scaled(d, float(f), float(f)) for d, f in zip(found, factors, strict=True)]
    return found


def _scaled(device: Device, speed: float, link: float) -> Device:
    return replace(
        device,
        flops_per_s=device.flops_per_s * speed,
        crypto_speed=device.crypto_speed * speed,
        downlink_bit_s=device.downlink_bit_s * link,
        uplink_bit_s=device.uplink_bit_s * link,
    )


def _by_share(num_clients: int, tiers: Mapping[str, float], rng: np.random.Generator) -> list[Device]:
    names, largest = list(tiers), max(tiers.values())
    shares = np.array([share / largest for share in tiers.values()])
    edges = np.floor(np.cumsum(shares) / shares.sum() * num_clients + 0.5).astype(int)
    numbers = np.repeat(np.arange(len(names)), np.diff(edges, prepend=0))
    return [PRESETS[names[number]] for number in rng.permutation(numbers)]


def _from_file(num_clients: int, path: Path, rng: np.random.Generator) -> list[Device]:
    clients, rows = read_devices(path)
    if clients is None:
        order = rng.permutation(len(rows)) if len(rows) >= num_clients else rng.integers(len(rows), size=num_clients)
        return [rows[number] for number in order[:num_clients]]
    by_client = dict(zip(clients, rows, strict=True))
    missing = [client for client in range(num_clients) if client not in by_client]
    if missing or len(by_client) < len(rows):
        what = f"no row for client {missing[0]}" if missing else "two rows for one client"
        raise BadTrace(f"{path} has {what}: clients are numbered from 0 to {num_clients - 1}, one row each; correct it")
    return [by_client[client] for client in range(num_clients)]


_WHOLE = {"memory_bytes", "cores"}
_NEEDED = ("flops_per_s", "downlink_bit_s", "uplink_bit_s")


def read_devices(path: Path) -> tuple[list[int] | None, list[Device]]:
    """Read a file of devices.

    Args:
        path: CSV or Parquet, by its suffix.

    Returns:
        The column ``client`` or None, and a device for each row.

    Raises:
        BadTrace: it cannot be read, a column is missing or unknown, or a value is out of range; names the row.
    """
    table = read_rows(path)
    known = {field.name for field in fields(Device)} | {"client"}
    columns = list(table[0]) if table else []
    if not table or not set(_NEEDED) <= set(columns) or not set(columns) <= known:
        raise BadTrace(
            f"{path} has the columns {', '.join(columns) or 'none'} in {len(table)} rows: it needs "
            f"{', '.join(_NEEDED)} and may have {', '.join(sorted(known - set(_NEEDED)))}; see docs/heterogeneity.md"
        )
    found = []
    for number, row in enumerate(table, 1):
        try:
            values = {name: _value(name, value) for name, value in row.items() if name != "client"}
            found.append(Device(**{"tier": "trace", **values}))
        except ValueError as error:
            raise BadTrace(f"{path}, row {number}: {error}") from error
    if "client" not in columns:
        return None, found
    return [whole(path, number, "client", row["client"]) for number, row in enumerate(table, 1)], found


def whole(path: Path, number: int, name: str, value: Any) -> int:
    """Return a cell that must be a whole number.

    Raises:
        BadTrace: it is none; names the row.
    """
    if not isinstance(value, int) and not (isinstance(value, float) and value.is_integer()):
        raise BadTrace(f"{path}, row {number}: {name} is {value!r}; it must be a whole number, correct it")
    return int(value)


def _value(name: str, value: Any) -> Any:
    if name == "tier" and value not in (None, ""):
        return str(value)
    try:
        number = float(value)
        return round(number) if name in _WHOLE else number
    except (TypeError, ValueError, OverflowError):
        shown = "empty" if value in (None, "") else repr(value)
        raise BadTrace(
            f"{name} is {shown}; it must be a {'text' if name == 'tier' else 'number'}, correct it"
        ) from None


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a CSV or Parquet file, by its suffix.

    Raises:
        BadTrace: it cannot be read.
    """
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    try:
        if path.suffix.lower() == ".parquet":
            table = pyarrow.parquet.read_table(path, memory_map=False)
        else:
            table = pyarrow.csv.read_csv(path)
        rows: list[dict[str, Any]] = table.to_pylist()
    except (OSError, pa.ArrowException, ValueError, OverflowError) as error:
        raise BadTrace(f"{path} cannot be read as CSV or Parquet ({error}): name a file of devices") from error
    return rows


def devices_table(devices: Sequence[Device]) -> list[dict[str, Any]]:
    """Return one dict a client, with the columns of a file of devices."""
    names = [field.name for field in fields(Device)]
    return [
        {"client": client} | {name: getattr(device, name) for name in names} for client, device in enumerate(devices)
    ]


def write_devices(devices: Sequence[Device], path: Path, *, clients: bool = True) -> None:
    """Write a file of devices, CSV or Parquet by its suffix; :func:`read_devices` reads it back.

    Args:
        devices: the rows.
        path: the file.
        clients: whether row i is client i's; without, a run deals the rows out.
    """
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    table = pa.Table.from_pylist(devices_table(devices))
    table = table if clients else table.drop_columns("client")
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix.lower() == ".parquet":
        pyarrow.parquet.write_table(table, path)
    else:
        pyarrow.csv.write_csv(table, path)
