"""What the server can rebuild: everything from a clear gradient, nothing from a round of DictPFL."""

import numpy as np
import pytest
import torch
from torch import nn

import fedsim.client_app as client_app
from crypto import wire
from experiments.privacy.__main__ import attack, by_name, examples, perceptron
from experiments.privacy.attacks import cosine, dense_recovery, gradients, invert, ssim
from fedsim.config import load_config
from fedsim.runner import simulate
from strategies.records import SEALED_STYPE


def test_one_visible_row_and_its_bias_give_the_input_exactly():
    """x = dL/dW[j] / dL/db[j], for any neuron in the clear."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(12, 6), nn.Tanh(), nn.Linear(6, 3)), torch.rand(12)
    gradient = gradients(model, x, torch.tensor(1))
    for row in range(6):
        seen = torch.zeros(6, 12, dtype=torch.bool)
        seen[row] = True
        found, known = dense_recovery(gradient["0.weight"], gradient["0.bias"], seen, seen[:, 0])
        assert bool(known.all()) and torch.allclose(found, x, atol=1e-4)


def test_without_a_bias_or_its_row_nothing_is_exact():
    weight, bias = torch.rand(4, 5), torch.rand(4)
    rows, none = torch.ones(4, 5, dtype=torch.bool), torch.zeros(4, dtype=torch.bool)
    found, known = dense_recovery(weight, bias, rows, none)
    assert not known.any() and not found.any()
    assert not dense_recovery(weight, bias, ~rows, ~none)[1].any()


def test_inversion_finds_the_input_from_the_last_layers_alone():
    torch.manual_seed(0)
    model, x = perceptron(16, 5), torch.rand(16)
    target = gradients(model, x, torch.tensor(2))
    seen = {n: torch.zeros_like(p, dtype=torch.bool) for n, p in target.items()}
    seen["0.weight"] |= True
    found = invert(model, target, seen, torch.tensor(2), torch.rand(16))
    assert cosine(found.numpy(), x.numpy()) > 0.95


def test_with_nothing_visible_the_guess_stays():
    images, labels, _, _ = examples(2)
    model, guess = perceptron(images[0].size, 10), torch.rand(images[0].size)
    nothing = np.zeros(sum(p.numel() for p in model.parameters()), np.bool_)
    found = attack(model, images[0], int(labels[0]), nothing, guess)
    assert found.visible == found.pixels == 0.0
    assert np.array_equal(found.found, guess.numpy().reshape(images[0].shape))
    seen = by_name(~nothing, model)
    assert all(s.all() and s.shape == p.shape for s, p in zip(seen.values(), model.parameters(), strict=True))


def test_similarity_is_1_for_an_image_and_itself_and_below_for_others():
    one, two = (np.random.default_rng(i).random((8, 8)) for i in (0, 1))
    assert ssim(one, one) == pytest.approx(1) and cosine(one, one) == pytest.approx(1)
    assert ssim(one, two) < 0.5 and ssim(one, 1 - one) < 0


def transcript(tmp_path, strategy, *more):
    """Return all that clients answer to training messages in a run of three rounds."""
    replies, inner = [], client_app.app._registered_funcs["train.default"]

    def watching(message, context):
        reply = inner(message, context)
        replies.append({n: {k: a.data for k, a in r.items()} for n, r in reply.content.array_records.items()})
        assert all(a.stype == SEALED_STYPE for r in reply.content.array_records.values() for a in r.values())
        return reply

    settings = ["task.name=digits", "model.name=mlp", "federation.num_clients=2", "federation.rounds=3"]
    quiet = ["output.report=false", f"output.folder={tmp_path}", "engine.name=inline", "protection.name=bfv"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(client_app.app._registered_funcs, "train.default", watching)
        simulate(load_config(None, [*settings, *quiet, f"strategy.name={strategy}", *more]))
    return replies


def schemes(replies):
    """Return the schemes of all frames in a transcript, read from their heads."""
    head = len(wire.MAGIC) + 2
    return {
        blob[head : head + 10].rstrip(b"\0").decode() for r in replies for part in r.values() for blob in part.values()
    }


@pytest.mark.parametrize("strategy", ["dictpfl", "fedavg", "fedtop"])
def test_a_transcript_of_a_fully_encrypted_round_holds_ciphertexts_alone(tmp_path, strategy):
    assert schemes(transcript(tmp_path, strategy)) == {"bfv"}


def test_a_transcript_of_fedml_he_holds_floats_from_which_inputs_follow(tmp_path):
    replies = transcript(tmp_path, "fedml-he")
    assert schemes(replies) == {"bfv", "plain"}
    clear = np.frombuffer(replies[-1]["sealed"]["1"][wire.HEADER_BYTES :], "<f4")
    assert clear.size == pytest.approx(0.9 * 17_226, abs=1) and np.abs(clear).max() > 1e-4
