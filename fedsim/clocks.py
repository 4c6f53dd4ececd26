"""Settings -> virtual clock: devices, policy, presence, and the costs of the run's protection."""

from pathlib import Path

from fedsim.config import RunConfig
from fedsim.simulation.clock import Policy, VirtualClock
from fedsim.simulation.crypto_costs import FREE, CryptoCosts, crypto_costs
from fedsim.simulation.devices import PRESETS, Device, deal
from fedsim.simulation.presence import Always, InRounds, Presence, read_presence
from fedsim.site import Site, secure_plan

__all__ = ["clock_of", "devices_of"]


def devices_of(config: RunConfig) -> list[Device]:
    """Return each client's device.

    Raises:
        BadTrace: the file of devices cannot be used.
    """
    d = config.devices
    return deal(
        config.federation.num_clients,
        config.seed,
        d.profile,
        preset=d.preset,
        network=d.network,
        tiers=d.tiers,
        sigma=d.sigma,
        network_sigma=d.network_sigma,
        exponent=d.exponent,
        availability=d.availability,
        trace=d.trace,
    )


def clock_of(site: Site, now_s: float = 0.0) -> VirtualClock:
    """Return a run's virtual clock.

    Args:
        site: the run's.
        now_s: virtual seconds since the start, where a resumed run stands.

    Raises:
        BadTrace: a file of devices or presence cannot be used.
    """
    config, devices = site.config, devices_of(site.config)
    policy = Policy(config.clock.policy, config.federation.sampled, config.clock.deadline_s)
    return VirtualClock(devices, PRESETS[config.clock.server], _costs(site), policy, _presence(config, devices), now_s)


def _presence(config: RunConfig, devices: list[Device]) -> Presence:
    if config.devices.availability_trace is not None:
        return read_presence(Path(config.devices.availability_trace), len(devices))
    if all(device.availability == 1.0 for device in devices):
        return Always()
    return InRounds(devices, config.seed)


def _costs(site: Site) -> CryptoCosts:
    protection = site.config.protection
    if protection.name == "plain":
        return FREE
    plan = secure_plan(site)
    budget = site.protection.secure_sum(plan).budget
    return crypto_costs(protection.name, getattr(protection, "mode", ""), plan, budget)
