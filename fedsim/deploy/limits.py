"""Limits that make a client's container as slow as a device: a share of this host's processor, measured here."""

import copy
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from fedsim.config import RunConfig, to_run_config
from fedsim.errors import ConfigError, Problem

if TYPE_CHECKING:
    from fedsim.site import Site

_FEWEST_CPUS = 0.01
_LEAST_MEMORY_BYTES = 2**30


def train_a_little(site: "Site", client: int, examples: int) -> float:
    """Train a copy of the model once on a client's first examples; returns the floating-point operations."""
    from fedsim.registry import train_config
    from fedsim.tasks.training import train

    x, y = (part[:examples] for part in site.train_data(client))
    if not len(y):
        return 0.0
    model, config = copy.deepcopy(site.model), train_config(site.config, 1, 0.0)
    done = train(model, x, y, config, seed=0, round=0, flops_per_example=site.flops_per_example)
    return float(done.forward_backward_flops or 0)


def training_speed(site: "Site", cpu_s: Callable[[], float] = time.process_time) -> float:
    """Return the operations a second of processor time that training sustains on one core of this host.

    Args:
        site: a run's data and model; client 0's examples are trained on.
        cpu_s: processor seconds of this process, which other processes do not lengthen.
    """
    # The first step in a process imports hundreds of modules.
    train_a_little(site, 0, 2)
    started = cpu_s()
    return train_a_little(site, 0, len(site.train_data(0)[1])) / (cpu_s() - started)


def container_limits(config: RunConfig, speed: float, cpus: int) -> dict[str, str]:
    """Return the variables of docker-compose.yml that limit each client to the settings' device.

    Args:
        config: the run's settings; replicas have equal limits, so all clients must have one device.
        speed: of one core of this host, operations a second.
        cpus: cores of this host.

    Raises:
        ConfigError: the clients' devices differ, or this host cannot be as fast.
    """
    from fedsim.clocks import devices_of

    devices = devices_of(config)
    if len(set(devices)) > 1:
        rule = "gives clients different devices, and replicas of a service have equal limits"
        raise ConfigError([Problem("devices.profile", config.devices.profile, rule, "set devices.profile = uniform")])
    quota, memory_bytes = devices[0].flops_per_s / speed, devices[0].memory_bytes
    if not _FEWEST_CPUS <= quota <= cpus:
        rule = f"is {quota:.3g} cores of this host: must be {_FEWEST_CPUS:g} to {cpus}"
        raise ConfigError([Problem("devices.preset", devices[0].tier, rule, "choose another preset, or another host")])
    # PyTorch alone takes half a gigabyte, whatever the device would have.
    memory = max(memory_bytes, _LEAST_MEMORY_BYTES) // 2**20
    return {"FEDSIM_CLIENT_CPUS": f"{quota:.3f}", "FEDSIM_CLIENT_MEMORY": f"{memory}m"}


def measured_limits(config: RunConfig, cpus: int) -> dict[str, str]:
    """Measure this host with the run's own model and return :func:`container_limits`."""
    from fedsim.site import site_of

    return container_limits(config, training_speed(site_of(to_run_config(config))), cpus)


__all__ = ["container_limits", "measured_limits", "train_a_little", "training_speed"]
