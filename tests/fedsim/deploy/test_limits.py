"""A container's share of this host is the device's speed over the host's."""

import itertools

import pytest

from fedsim.config import load_config, to_run_config
from fedsim.deploy.init import initialise
from fedsim.deploy.limits import container_limits, measured_limits, train_a_little, training_speed
from fedsim.errors import ConfigError
from fedsim.simulation.devices import PRESETS
from fedsim.site import site_of

SMALL = ["task.name=digits", "model.name=mlp", "federation.num_clients=2", "federation.rounds=1"]


def settings(*more):
    return load_config(None, [*SMALL, *more])


@pytest.mark.parametrize("preset", ["phone-low", "raspberry-pi-4"])
def test_the_quota_is_the_devices_speed_over_the_hosts(preset):
    found = container_limits(settings(f"devices.preset={preset}"), speed=PRESETS[preset].flops_per_s * 4, cpus=1)
    assert found["FEDSIM_CLIENT_CPUS"] == "0.250"
    assert found["FEDSIM_CLIENT_MEMORY"] == {"phone-low": "2048m", "raspberry-pi-4": "4096m"}[preset]


def test_memory_is_enough_for_torch():
    assert container_limits(settings("devices.preset=raspberry-pi-zero2"), 1e9, 1)["FEDSIM_CLIENT_MEMORY"] == "1024m"


@pytest.mark.parametrize(
    ("more", "speed", "message"),
    [
        (["devices.preset=server"], 1e10, "65.6 cores of this host: must be 0.01 to 2"),
        (["devices.preset=raspberry-pi-zero2"], 1e12, "choose another preset"),
        (["devices.profile=zipf"], 1e10, "replicas of a service have equal limits"),
    ],
)
def test_refuses_devices_that_this_host_cannot_be(more, speed, message):
    with pytest.raises(ConfigError, match=message):
        container_limits(settings(*more), speed, cpus=2)


def test_speed_is_operations_over_processor_seconds():
    site = site_of(to_run_config(settings()))
    whole = train_a_little(site, 0, len(site.train_data(0)[1]))
    ticks = itertools.count(step=2.0)
    assert training_speed(site, lambda: next(ticks)) == whole / 2.0 > 0
    assert train_a_little(site, 0, 0) == 0.0


def test_limits_reach_the_variables_of_compose(tmp_path):
    limits = measured_limits(settings("devices.preset=raspberry-pi-zero2"), cpus=64)
    made = initialise(tmp_path / "it", settings(), limits=limits)
    lines = made.deployment.environment.read_text().splitlines()
    assert f"FEDSIM_CLIENT_CPUS={limits['FEDSIM_CLIENT_CPUS']}" in lines and float(limits["FEDSIM_CLIENT_CPUS"]) < 64
