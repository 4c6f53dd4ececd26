"""What a party made from its keys is dropped when it is done with them."""

import gc
import os
import weakref

import numpy as np
import pytest

from crypto.base import Plan, Tag
from fedsim.config import load_config
from fedsim.protections import fresh_keys, protection_of
from strategies.keyed import forget_keys

PLAN = Plan(length=40, clients=4, bound=1.0)
TAG = Tag(round=1, layout_hash=bytes(16), length=40)


def test_roles_are_kept_until_their_keys_are_forgotten():
    config = load_config(None, ["protection.name=rlwe"])
    with fresh_keys(protection_of(config, None, "clients"), PLAN) as first:
        with fresh_keys(protection_of(config, None, "clients"), PLAN) as second:
            one, other = (protection_of(config, ring.clients, "clients") for ring in (first, second))
            part = one.sealer(PLAN).seal(np.zeros(40, np.float32), TAG)[0]
            assert one.sealer(PLAN) is one.sealer(PLAN), "made once"
            sealer, kept = weakref.ref(one.sealer(PLAN)), other.sealer(PLAN)
            forget_keys(first.clients)
            gc.collect()
            assert sealer() is None and other.sealer(PLAN) is kept, "only what the forgotten keys made is gone"
            adder = one.secure_sum(PLAN).adder(TAG)
            adder.add(part)
            assert np.allclose(one.opener(PLAN).open([adder.total()], TAG), 0, atol=1e-3), "it is made anew on demand"
            for ring in (first, second):
                forget_keys(ring.clients)


def test_files_of_a_library_are_closed_with_them():
    pytest.importorskip("tenseal", reason="tenseal is not installed: pip install 'fedsim[tenseal]'")
    config = load_config(None, ["protection.name=bfv"])
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        protection = protection_of(config, None, "clients")
        with fresh_keys(protection, PLAN) as ring:
            own = protection_of(config, ring.clients, "clients")
            own.sealer(PLAN).seal(np.zeros(40, np.float32), TAG)
            own.opener(PLAN)
        forget_keys(ring.clients)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before + 1
