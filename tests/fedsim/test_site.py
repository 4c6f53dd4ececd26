"""What a process makes once: the partition of a run, and the tensors of the clients that it asked for last."""

import pytest
import torch
from torch import Tensor

from fedsim import site
from fedsim.config import RunConfig, load_config, to_run_config, with_values
from fedsim.site import _Held, server_site_of, site_of


def pair(values: int) -> tuple[Tensor, Tensor]:
    return torch.zeros(values), torch.zeros(1, dtype=torch.int64)


def config(*sets: str) -> RunConfig:
    return load_config(None, ["task.name=digits", "federation.num_clients=5", *sets])


def test_the_oldest_clients_give_way() -> None:
    held = _Held(100)
    first = held.keep(0, pair(10))
    held.keep(1, pair(10))
    assert held.find(0) is first
    held.keep(2, pair(10))
    assert held.find(1) is None and held.find(0) is first
    large = held.keep(3, pair(1000))
    assert held.find(0) is None and held.find(2) is None and held.find(3) is large
    assert held.keep(4, pair(10)) is held.find(4) and held.find(3) is None


def test_the_sites_of_a_run_deal_the_data_once(monkeypatch: pytest.MonkeyPatch) -> None:
    dealt: list[int] = []
    deal = site._deal
    monkeypatch.setattr(site, "_deal", lambda *args: dealt.append(1) or deal(*args))
    one = config("seed=41")
    named = with_values(one, {"output.name": "another"})
    found = [site_of(to_run_config(one)), site_of(to_run_config(named)), server_site_of(to_run_config(named))]
    assert found[0] is not found[1] and len({id(each.partition) for each in found}) == 1 and len(dealt) == 1


@pytest.mark.parametrize("other", ["seed=43", "federation.num_clients=6", "data.scheme=iid"])
def test_other_settings_deal_anew(other: str) -> None:
    one, two = (site_of(to_run_config(config("seed=42", *more))).partition.indices for more in ((), (other,)))
    assert one is not two and any(len(a) != len(b) or (a != b).any() for a, b in zip(one, two, strict=False))
