"""Stored messages of the homomorphic sums still open, and the stored bad ones are still refused."""

import base64
import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tenseal", reason="tenseal is not installed: pip install 'fedsim[tenseal]'")

from crypto import errors
from crypto.keys import KeyBundle

ROOT = Path(__file__).parents[1] / "vectors"
_SPEC = importlib.util.spec_from_file_location("make_he", ROOT / "make_he.py")
assert _SPEC is not None and _SPEC.loader is not None
make_he = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(make_he)

SCHEMES = ("bfv", "ckks")
BAD = [(scheme, path.stem) for scheme in SCHEMES for path in sorted((ROOT / scheme / "v1").glob("bad_*.json"))]


def load(scheme: str, name: str) -> dict[str, object]:
    return json.loads((ROOT / scheme / "v1" / f"{name}.json").read_text())


def setting(scheme: str):
    """Return (stored good record, description bound to its key, clients' bundle)."""
    good = load(scheme, "sum_of_three")
    key = KeyBundle.decode(base64.b64decode(good["clients_key"]))
    return good, make_he.build(scheme).with_key(key.key_id), key


@pytest.mark.parametrize("scheme", SCHEMES)
def test_stored_messages_open_to_the_stored_sum(scheme: str) -> None:
    good, sum_, key = setting(scheme)
    adder, opener = sum_.adder(make_he.TAG), sum_.opener(key)
    for part in good["parts"]:
        adder.add(base64.b64decode(part))
    for total in (adder.total(), base64.b64decode(good["total"])):
        opened = opener.open([total], make_he.TAG)
        np.testing.assert_allclose(opened, good["sum"], rtol=0, atol=sum_.budget.error_bound)
    np.testing.assert_array_equal(
        opener.open([adder.total()], make_he.TAG), opener.open([base64.b64decode(good["total"])], make_he.TAG)
    )


@pytest.mark.parametrize(("scheme", "name"), BAD)
def test_stored_bad_messages_are_refused_by_their_type(scheme: str, name: str) -> None:
    _, sum_, _ = setting(scheme)
    record = load(scheme, name)
    adder = sum_.adder(make_he.TAG)
    with pytest.raises(getattr(errors, record["error"])):
        getattr(adder, record["method"])(base64.b64decode(record["message"]))
    assert adder.count == 0


def test_every_kind_of_damage_is_stored() -> None:
    assert len(BAD) == 24
