"""Start weights for DictPFL's experiments: a model trained on public images that differ from the federation's.

``python -m experiments.dictpfl.start --out start.safetensors`` trains on digits turned by 90 degrees, the ones that
the clients hold are upright. Every method of an experiment then starts from this one file (``model.weights``).
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from fedsim.config import load_config, to_run_config
from fedsim.site import read_state, site_of
from fedsim.tasks.training import TrainConfig, train
from strategies.records import model_bytes


def pretrain(out: Path, settings: list[str], *, images: int = 400, turns: int = 1, epochs: int = 60) -> Path:
    """Train the settings' model on the first images of the training set, turned, and write its weights.

    Args:
        out: the file.
        settings: ``section.key=value`` each; task, model and seed count.
        images: how many.
        turns: quarter turns.
        epochs: of AdamW at 1e-3, batches of 32.
    """
    site = site_of(to_run_config(load_config(None, settings)))
    x = np.rot90(np.asarray(site.dataset.train_x[:images]), turns, axes=(-2, -1)).copy()
    y = np.asarray(site.dataset.train_y[:images]).astype(np.int64)
    torch.set_num_threads(1)
    train(site.model, x, y, TrainConfig(epochs=epochs, batch_size=32, optimizer="adamw", lr=1e-3), seed=1, round=1)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(model_bytes(read_state(site.model)))
    return out


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--set", nargs="*", default=["task.name=digits", "model.name=mlp"], metavar="KEY=VALUE")
    args = parser.parse_args()
    print(pretrain(args.out, args.set, images=args.images, turns=args.turns, epochs=args.epochs))


if __name__ == "__main__":
    main()
