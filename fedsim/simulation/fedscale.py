"""Imports the device and availability traces that FedScale published (Lai et al., ICML 2022, section 3.2).

Capacity: a pickled dict of client -> ``{"computation": ms, "communication": kbit/s}``, the milliseconds of one sample's
forward pass and one bandwidth for both directions. Behaviour: client -> ``{"active": [s, ...], "inactive": [s, ...],
"finish_time": s}``.
A pickle can run code: these are read by an unpickler that knows numbers, texts, lists and dicts alone.
"""

import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from fedsim.simulation.devices import Device
from fedsim.simulation.errors import BadTrace

__all__ = ["FORWARD_FLOPS", "import_behaviour", "import_capacity", "write_presence"]

#: Operations of the forward pass that FedScale's milliseconds are of: MobileNetV2 at 224 pixels, 300 M multiply-adds
#: (Sandler et al., CVPR 2018, table 4).
FORWARD_FLOPS = 0.6e9


class _Plain(pickle._Unpickler):
    # The one in Python: that in C makes room for as many objects as a damaged file says that it remembers.
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it holds {module}.{name}, and only numbers, texts, lists and dicts are read")


def _load(path: Path) -> Mapping[Any, Mapping[str, Any]]:
    try:
        found = _Plain(io.BytesIO(path.read_bytes())).load()
    except Exception as error:  # a damaged pickle raises whatever its opcodes meet
        raise BadTrace(f"{path} is no trace of FedScale's ({error or 'damaged'}): name its pickled dict") from error
    if not isinstance(found, dict) or not found or not all(isinstance(row, dict) for row in found.values()):
        raise BadTrace(f"{path} is a {type(found).__name__}: it must be a dict of client -> dict; name another file")
    if {type(client) for client in found} not in ({int}, {str}):
        raise BadTrace(f"{path} does not number all its clients, nor name all: it must do one; name another file")
    return found


def import_capacity(path: Path, forward_flops: float = FORWARD_FLOPS) -> list[Device]:
    """Return the devices of a capacity file, in the order of its clients.

    Args:
        path: FedScale's ``client_device_capacity``.
        forward_flops: operations of the forward pass that its milliseconds are of.

    Raises:
        BadTrace: the file is something else, or a value is out of range; names the client.
    """
    devices = []
    for client, row in sorted(_load(path).items()):
        try:
            speed, link = forward_flops / (float(row["computation"]) / 1000), 1000 * float(row["communication"])
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            raise BadTrace(
                f"{path}, client {client}: {error!r}; computation and communication must be there"
            ) from error
        try:
            device = Device(tier="fedscale", flops_per_s=speed, downlink_bit_s=link, uplink_bit_s=link, cores=8)
        except BadTrace as error:
            raise BadTrace(f"{path}, client {client}: {error}") from error
        devices.append(device)
    return devices


def import_behaviour(path: Path) -> list[dict[str, float]]:
    """Return rows ``client, start_s, end_s, period_s``, clients numbered from 0 in the order of the file's.

    Times of a client that end before they begin, which FedScale's files have at their ends, are left out; a client
    without any is there for no time and left out too.

    Raises:
        BadTrace: the file is something else.
    """
    found = sorted(_load(path).items())
    try:
        period_s = max(float(row["finish_time"]) for _, row in found)
        return [
            {"client": number, "start_s": float(start), "end_s": float(end), "period_s": period_s}
            for number, (_, row) in enumerate(found)
            for start, end in _apart(row["active"], row["inactive"])
        ]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise BadTrace(f"{path}: {error!r}; active, inactive and finish_time must be there for each client") from error


def _apart(starts: list[float], ends: list[float]) -> list[tuple[float, float]]:
    kept: list[tuple[float, float]] = []
    for start, end in sorted(zip(starts, ends, strict=False)):
        start = max(start, kept[-1][1] if kept else 0.0)
        if start < end:
            kept.append((start, end))
    return kept


def write_presence(rows: list[dict[str, float]], path: Path) -> None:
    """Write rows as :func:`fedsim.simulation.presence.read_presence` reads them."""
    table = pa.Table.from_pylist(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix.lower() == ".parquet":
        pyarrow.parquet.write_table(table, path)
    else:
        pyarrow.csv.write_csv(table, path)
