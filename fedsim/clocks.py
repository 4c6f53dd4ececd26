"""Settings -> virtual clock: devices, policy, presence, and the costs of the run's protection."""

from pathlib import Path

from fedsim.config import RunConfig
from fedsim.simulation.clock import Policy, VirtualClock, Work
from fedsim.simulation.crypto_costs import FREE, CryptoCosts, crypto_costs
from fedsim.simulation.devices import PRESETS, Device, deal
from fedsim.simulation.presence import Always, InRounds, Presence, read_presence
from fedsim.site import Site, secure_plan
from strategies.records import model_bytes

__all__ = ["DevicePace", "clock_of", "crypto_costs_of", "devices_of"]


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
    return VirtualClock(
        devices, PRESETS[config.clock.server], crypto_costs_of(site), policy, _presence(config, devices), now_s
    )


class DevicePace:
    """The pace of a run's devices, for a server that waits for nobody: predicted turns, by what is known before.

    Args:
        site: the run's.
        clock: told when the server's steps are due.
    """

    def __init__(self, site: Site, clock: VirtualClock) -> None:
        plan, training = secure_plan(site), site.config.training
        download_bytes = len(model_bytes(site.initial))
        upload_bytes = site.protection.secure_sum(plan).budget.upload_bytes
        tested = len(site.dataset.test_y) // site.config.federation.num_clients
        asked = site.config.federation.evaluate_received
        evaluate_flops = tested * site.evaluation_flops_per_example if asked else 0
        self._clock, self._turns = clock, list[float]()
        for client, size in enumerate(site.partition.sizes.tolist()):
            seen = size * training.epochs
            if training.max_steps is not None:
                seen = min(seen, training.max_steps * training.batch_size)
            work = Work(download_bytes, upload_bytes, seen * site.flops_per_example, evaluate_flops=evaluate_flops)
            self._turns.append(clock.turn(client, work).total_s)

    def turn_s(self, partition_id: int) -> float:
        """See :class:`strategies.fedbuff.Pace`."""
        return self._turns[partition_id]

    def stepped(self, at_s: float) -> None:
        """See :class:`strategies.fedbuff.Pace`."""
        self._clock.ends_s = at_s


def _presence(config: RunConfig, devices: list[Device]) -> Presence:
    if config.devices.availability_trace is not None:
        return read_presence(Path(config.devices.availability_trace), len(devices))
    if all(device.availability == 1.0 for device in devices):
        return Always()
    return InRounds(devices, config.seed)


def crypto_costs_of(site: Site) -> CryptoCosts:
    """Return the seconds that the run's protection takes on the core that was measured."""
    protection = site.config.protection
    if protection.name == "plain":
        return FREE
    mode = "dense" if getattr(protection, "dense", False) else str(getattr(protection, "mode", ""))
    return crypto_costs(protection.name, mode, secure_plan(site))
