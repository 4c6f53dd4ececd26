"""Compares a run in containers with the simulation of its settings: same_as_simulation.py FOLDER RUN UP DOWN HELPER

The weights are equal bit for bit where nothing random is added to them, and nearly so where rounding is by coins. The
bytes on the interfaces of clients and helper are the ledger's plus framing; UP, DOWN and HELPER are those bytes, and
without them the weights alone are compared.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

from fedsim.config import PreambleConfig, RunConfig, load_config, with_values
from fedsim.deploy.traffic import compare
from fedsim.measure.ledger import Ledger
from fedsim.measure.metrics import Metrics
from fedsim.runner import simulate
from strategies.records import model_from_bytes

#: Between weights whose sums were rounded by coins, in the few rounds of these runs.
ROUNDED = 1e-3


def largest_difference(config: RunConfig) -> float:
    """Return how far the weights of two runs of these settings may lie apart.

    Noise and blocks drawn at random have no bound here; coins of rounding alone move a weight by a step of the
    fixed-point numbers, and what is trained from it by little more.
    """
    protection = config.protection
    if isinstance(protection, PreambleConfig):
        return ROUNDED if protection.dense and protection.noise == "off-not-private" else float("inf")
    return ROUNDED if getattr(protection, "rounding", "nearest") == "stochastic" else 0.0


def accuracy(metrics: dict[str, float]) -> float:
    """Return the accuracy on the server, or on the clients where only they can open the model."""
    return metrics.get("server_accuracy", metrics.get("client_accuracy", float("nan")))


def same_weights(folder: Path, run: Path) -> None:
    """Compare models and accuracies."""
    config = load_config(folder / "settings.toml")
    with tempfile.TemporaryDirectory() as place:
        simulated = simulate(with_values(config, {"output.folder": place, "output.report": False}))
    assert simulated.state is not None
    server = run / "model.safetensors"
    models = [server] if server.exists() else sorted((folder / "out").glob("*/model.safetensors"))
    assert models, "the run left no model"
    distances = []
    for path in models:
        state = model_from_bytes(path.read_bytes())
        pairs = [(state.arrays[name], array) for name, array in simulated.state.arrays.items()]
        distances.append(max(float(np.abs(one.astype(float) - two).max()) for one, two in pairs))
        assert distances[-1] <= largest_difference(config), f"{path} is {distances[-1]:g} from the simulation's model"
    table = Metrics.read(run).table()
    last = {f"{row['side']}_{row['name']}": row["value"] for row in table.to_pylist()}
    print(
        f"{config.protection.name}: {len(models)} models, largest difference from the simulation's weights "
        f"{max(distances):g}; accuracy {accuracy(last):.4f}, simulation {accuracy(dict(simulated.metrics)):.4f}; "
        f"run.json says {json.loads((run / 'run.json').read_text())['status']}"
    )


def same_bytes(folder: Path, run: Path, interfaces: dict[str, int], helper: int) -> None:
    """Compare the ledger with the bytes that passed the proxy and the network interfaces."""
    found = compare(run, folder / "state" / "traffic.log")
    for way, ledger, direction in (
        ("upload", found.upload_bytes, found.traffic.upload),
        ("download", found.download_bytes, found.traffic.download),
    ):
        framing = interfaces[way] - ledger
        print(f"{way}: ledger {ledger}, interfaces {interfaces[way]}, of that framing {framing}")
        assert ledger <= direction.object_bytes <= ledger + 200 * direction.objects + 3 * 2000
        assert interfaces[way] >= direction.object_bytes
    if booked := int(Ledger.read(run).total("wire_bytes", party="helper")):
        print(f"helper: ledger {booked}, interface {helper}, of that framing {helper - booked}")
        # TLS adds 22 bytes a record of 16 kB, TCP and IP 52 of 1,500, and acknowledgements.
        assert booked <= helper <= 1.15 * booked + 50_000


if __name__ == "__main__":
    place, left, *counted = sys.argv[1:]
    same_weights(Path(place), Path(left))
    if counted:
        up, down, relayed = map(int, counted)
        same_bytes(Path(place), Path(left), {"upload": up, "download": down}, relayed)
