"""Stored messages: every byte follows from its seeds, on every instruction set; the stored bad ones are refused."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from crypto import _native, errors, wire
from crypto.keys import KeyBundle
from crypto.rlwe import reference
from crypto.rlwe.engine import Seeds

ROOT = Path(__file__).parents[2] / "vectors"
_SPEC = importlib.util.spec_from_file_location("make_rlwe", ROOT / "make_rlwe.py")
assert _SPEC is not None and _SPEC.loader is not None
make = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(make)
FILES = ROOT / "rlwe" / "v1"
BAD = sorted(path.stem for path in FILES.glob("bad_*.json"))
each_mode = pytest.mark.parametrize("mode", make.MODES)


def load(name: str) -> dict:
    return json.loads((FILES / f"{name}.json").read_text())


def setting(mode: str):
    """Return (stored record, description bound to its key, clients' bundle)."""
    record = load(f"sum_of_three_{mode}")
    key = KeyBundle.decode(bytes.fromhex(record["clients_key"]))
    return record, make.build(mode).with_key(key.key_id), key


@each_mode
def test_stored_messages_are_made_again_byte_by_byte(mode: str) -> None:
    assert make.good(mode) == load(f"sum_of_three_{mode}")


@each_mode
@pytest.mark.parametrize("isa", _native.ring_isas())
def test_every_instruction_set_makes_the_stored_parts(mode: str, isa: str) -> None:
    record, sum_, key = setting(mode)
    for i, (vector, part) in enumerate(zip(record["vectors"], record["parts"], strict=True)):
        seeds = Seeds(make.seed(f"public {i}"), make.seed(f"secret {i}"))
        assert sum_.sealer(key).seal_with(np.array(vector), make.TAG, seeds, isa).hex() == part


def test_the_reference_makes_the_stored_parts() -> None:
    record, sum_, key = setting("symmetric")
    p = sum_.parameters
    for i, (vector, part) in enumerate(zip(record["vectors"], record["parts"], strict=True)):
        public, secret = make.seed(f"public {i}"), make.seed(f"secret {i}")
        sealed = reference.seal_symmetric(p, sum_.codec, np.array(vector), key.secret, public, secret)
        assert part[2 * wire.HEADER_BYTES :] == (public + reference.pack(p, sealed)).hex()


@each_mode
def test_stored_messages_open_to_the_stored_sum(mode: str) -> None:
    record, sum_, key = setting(mode)
    adder = sum_.adder(make.TAG)
    for part in record["parts"]:
        adder.add(bytes.fromhex(part))
    assert adder.total().hex() == record["total"]
    opened = sum_.opener(key).open([bytes.fromhex(record["total"])], make.TAG)
    assert opened.tolist() == record["sum"]
    expected = np.clip(record["vectors"], -2, 2).sum(axis=0)
    np.testing.assert_allclose(opened, expected, rtol=0, atol=sum_.budget.error_bound)


def test_a_committees_messages_are_made_again_byte_by_byte() -> None:
    assert make.committee() == load("committee")


@pytest.mark.parametrize("name", BAD)
def test_stored_bad_messages_are_refused_by_their_type(name: str) -> None:
    _, sum_, _ = setting("symmetric")
    record = load(name)
    adder = sum_.adder(make.TAG)
    with pytest.raises(getattr(errors, record["error"])):
        getattr(adder, record["method"])(bytes.fromhex(record["message"]))
    assert adder.count == 0


def test_every_kind_of_damage_is_stored() -> None:
    assert BAD == sorted(make.bad("symmetric"))
