"""Compares a run in containers with the simulation of its settings: same_as_simulation.py FOLDER RUN UP DOWN

The weights are equal bit for bit, and the bytes on the clients' interfaces are the ledger's plus framing.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

from fedsim.config import load_config, with_values
from fedsim.deploy.traffic import compare
from fedsim.runner import simulate
from strategies.records import model_from_bytes

folder, run = map(Path, sys.argv[1:3])
interfaces = {"upload": int(sys.argv[3]), "download": int(sys.argv[4])}
config = load_config(folder / "settings.toml")
with tempfile.TemporaryDirectory() as place:
    simulated = simulate(with_values(config, {"output.folder": place, "output.report": False}))
assert simulated.state is not None
server = run / "model.safetensors"
models = [server] if server.exists() else sorted((folder / "out").glob("*/model.safetensors"))
assert models, "the run left no model"
for path in models:
    state = model_from_bytes(path.read_bytes())
    equal = all(np.array_equal(state.arrays[name], array) for name, array in simulated.state.arrays.items())
    assert equal or config.protection.name == "preamble", f"{path} is not the simulation's model"
print(
    f"{len(models)} models equal the simulation's bit for bit; run.json says",
    json.loads((run / "run.json").read_text())["status"],
)
found = compare(run, folder / "state" / "traffic.log")
for way, ledger, direction in (
    ("upload", found.upload_bytes, found.traffic.upload),
    ("download", found.download_bytes, found.traffic.download),
):
    framing = interfaces[way] - ledger
    print(f"{way}: ledger {ledger}, interfaces {interfaces[way]}, of that framing {framing}")
    assert ledger <= direction.object_bytes <= ledger + 200 * direction.objects + 3 * 2000
    assert interfaces[way] >= direction.object_bytes
