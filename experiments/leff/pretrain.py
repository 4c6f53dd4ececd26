"""Pre-training of a small vision transformer on the server's own images, without labels: which way up are they?

``python -m experiments.leff.pretrain experiments/configs/papers/leff_digits.toml --out start.safetensors`` trains the
file's model to tell the four rotations of the proxy images (RotNet, Gidaris et al. 2018) and writes its weights, for
``model.weights``. Embeddings are frozen in fine-tuning: without pre-training they would be random.
"""

import argparse
from pathlib import Path

import torch

from fedsim.config import RunConfig, load_config
from fedsim.proxy import proxy_data
from fedsim.tasks.models import build_model
from fedsim.tasks.training import TrainConfig, train
from strategies.records import NamedArrays, model_bytes
from strategies.state import state_arrays

__all__ = ["main", "pretrain"]

_TURNS = 4


def pretrain(config: RunConfig, epochs: int) -> tuple[NamedArrays, float]:
    """Return the weights of a model that tells rotations apart, and its last loss."""
    x, _ = proxy_data(config)
    turned = torch.cat([torch.rot90(x, k, (2, 3)) for k in range(_TURNS)])
    labels = torch.arange(_TURNS).repeat_interleave(len(x))
    model = build_model(
        config.model.name,
        input_shape=tuple(x.shape[1:]),
        num_classes=_TURNS,
        seed=config.seed,
        **config.model.options,
    )
    settings = TrainConfig(epochs=epochs, batch_size=32, optimizer="adamw", lr=1e-3, weight_decay=0.01)
    result = train(model, turned, labels, settings, seed=config.seed, round=1)
    return NamedArrays(state_arrays(model)), result.loss


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path, default=Path("start.safetensors"))
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    state, loss = pretrain(load_config(args.config, args.set), args.epochs)
    args.out.write_bytes(model_bytes(state))
    print(f"mean training loss {loss:.3f}, guessing gives 1.386; weights in {args.out}")


if __name__ == "__main__":
    main()
