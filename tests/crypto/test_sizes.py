"""The size calculator: formulas against the sums' own budgets, published figures, refusals."""

import subprocess
import sys
from math import isnan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crypto.base import Plan
from crypto.ckks import CkksParameters
from crypto.errors import InputError
from crypto.he_openfhe import OpenFheBgv, OpenFheCkks, OpenFheSum
from crypto.he_seal import BfvSum
from crypto.he_tenseal import CkksSum
from crypto.packing import Layout
from crypto.rlwe.scheme import RlweSum
from crypto.rlwe.threshold import RlweThreshold
from crypto.sizes import COSTS, MODELS, SCHEMES, preamble_shape, sizes
from fedsim.tasks.models import build_model
from strategies.state import state_arrays

OURS = {
    "bfv": lambda plan: BfvSum(plan),
    "bfv-public": lambda plan: BfvSum(plan, mode="public"),
    "rlwe": lambda plan: RlweSum(plan),
    "rlwe-public": lambda plan: RlweSum(plan, mode="public"),
    "ckks": lambda plan: CkksSum(plan),
    "ckks-public": lambda plan: CkksSum(plan, mode="public"),
}


@pytest.mark.report(
    "U22", "all arrays of a model are packed as one vector: a ResNet is ceil(values / slots) ciphertexts"
)
def test_a_models_arrays_are_packed_into_one_vector() -> None:
    model = build_model("resnet20", input_shape=(3, 32, 32), num_classes=10, seed=0)
    layout = Layout.of(state_arrays(model))
    for make in (lambda plan: CkksSum(plan, parameters=CkksParameters(8192, (60, 40), 40)), OURS["bfv"]):
        sum_ = make(Plan(length=layout.length, clients=10, bound=1.0))
        assert sum_.ciphertexts(layout.length) == -(-layout.length // sum_.slots)
        assert sum_.ciphertexts(layout.length) < sum(-(-s.size // sum_.slots) for s in layout.segments)


@pytest.mark.parametrize("scheme", OURS)
@given(length=st.integers(1, 10**9), clients=st.sampled_from([1, 2, 10, 1000]))
def test_rows_agree_with_the_sums_own_budget(scheme: str, length: int, clients: int) -> None:
    (row,) = sizes(length, clients, schemes=[scheme])
    sum_ = OURS[scheme](Plan(length=length, clients=clients, bound=1.0))
    assert (row.upload_bytes, row.download_bytes) == (sum_.budget.upload_bytes, sum_.budget.download_bytes)
    assert (row.error_bound, row.headroom_bits) == (sum_.budget.error_bound, sum_.budget.headroom_bits)
    assert row.security_bits == sum_.budget.security_bits >= 128
    assert row.ciphertexts == sum_.ciphertexts(length)
    assert row.expansion == row.upload_bytes / (4 * length)


def test_dictpfl_counts_2619_ciphertexts_for_a_fully_encrypted_vit_b16() -> None:
    (row,) = sizes(MODELS["vit-b16"], 3, schemes=["dictpfl-paper"])
    assert row.ciphertexts == 2619
    assert row.upload_bytes == pytest.approx(66.7e9, rel=0.001)
    assert row.expansion == pytest.approx(194, abs=0.5)
    assert row.security_bits == 128


def test_dictpfl_table_of_rank_4_needs_11_ciphertexts() -> None:
    assert sizes(331_776, 3, schemes=["dictpfl-paper"])[0].ciphertexts == 11


def test_fedml_he_counts_about_5_gigabytes_for_a_vit() -> None:
    (row,) = sizes(MODELS["vit-b16"], 3, schemes=["fedml-he-paper"])
    assert row.ciphertexts == -(-MODELS["vit-b16"] // 4096)
    assert row.upload_bytes == pytest.approx(5.35e9, rel=0.05)


def test_the_usual_context_costs_81_bytes_a_parameter_and_ours_7() -> None:
    rows = {row.scheme: row for row in sizes(10**6, 1000)}
    assert rows["tenseal-usual"].upload_bytes / 1e6 == pytest.approx(81, abs=1)
    assert rows["bfv"].upload_bytes / 1e6 <= 7.2
    assert rows["ckks-public"].upload_bytes / 1e6 <= 31
    assert rows["openfhe-bgv"].upload_bytes / 1e6 <= 17


def test_a_plan_that_does_not_fit_says_why() -> None:
    (row,) = sizes(10, 10**6, bound=1e6, schemes=["ckks"])
    assert not row.fits and "wraps silently" in row.note and isnan(row.error_bound)


def test_all_rows_have_positive_sizes_and_plausible_times() -> None:
    rows = sizes(10**6, 100)
    assert [row.scheme for row in rows] == list(SCHEMES)
    for row in rows:
        assert row.fits and row.download_bytes > 0
        assert row.scheme == "plain" or (row.seal_s > 0 and row.add_s > 0 and row.open_s > 0)


@pytest.mark.parametrize(("scheme", "build"), [("openfhe-ckks", OpenFheCkks), ("openfhe-bgv", OpenFheBgv)])
def test_openfhe_rows_are_the_sums_own_budget(scheme: str, build: type[OpenFheSum]) -> None:
    (row,) = sizes(123_456, 100, schemes=[scheme])
    budget = build(Plan(length=123_456, clients=100, bound=1.0)).budget
    assert (row.upload_bytes, row.error_bound) == (budget.upload_bytes, budget.error_bound)


def test_a_committee_row_states_what_opening_costs() -> None:
    for name in ("openfhe-threshold", "rlwe-threshold"):
        (row,) = sizes(10**6, 10, schemes=[name])
        assert "3 members, each sends" in row.note
    budget = RlweThreshold(Plan(length=10**6, clients=10, bound=1.0), 3).budget
    assert (row.upload_bytes, row.security_bits) == (budget.upload_bytes, budget.security_bits)


def test_preamble_sends_a_mebibyte_for_64_to_the_byte() -> None:
    sparse, dense = sizes(2**23, 1000, schemes=["preamble", "preamble-dense"])
    assert "B=2048 k=64 t=64" in sparse.context
    public, frames, private, sealed = 16 + 1_054_848 + 64 * 64, 2 * 80, 2 + 16 + 16, 2 + 32 + 64 + 16
    assert f"public share {public:,} bytes" in sparse.note
    assert sparse.upload_bytes == public + frames + private + sealed
    assert dense.upload_bytes == 16 + 64 + 2**23 * 8 + frames + private + sealed
    assert sparse.security_bits == dense.security_bits == 127
    # One aggregator's noise is that of the Gaussian mechanism, and a little more where blocks hide it.
    assert dense.error_bound < sparse.error_bound < 1.05 * dense.error_bound


@given(length=st.integers(1, 10**9))
def test_preambles_blocks_fit_every_vector(length: int) -> None:
    shape = preamble_shape(length)
    assert shape.block_size <= shape.spread_length < 2 * length
    assert shape.padded_length == shape.spread_length


def test_needs_no_backend() -> None:
    code = (
        "import sys; sys.modules['tenseal'] = sys.modules['openfhe'] = None; from crypto.sizes import sizes; "
        "print(len(sizes(1000, 2)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(out) == len(SCHEMES)


def test_costs_scale_with_the_transforms() -> None:
    cost = COSTS["openfhe-ckks"]
    double = cost.scaled(2 * cost.ring, cost.primes)
    assert double.seal_s / cost.seal_s == pytest.approx(2 * 13 / 12)
    assert cost.scaled(cost.ring, 3).add_s == pytest.approx(3 * cost.add_s)


def test_unknown_schemes_are_named() -> None:
    with pytest.raises(InputError, match="scheme 'rsa': sizes are known for plain, bfv"):
        sizes(10, 2, schemes=["rsa"])
