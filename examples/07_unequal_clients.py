"""Lesson 7. Slow and fast devices: how long a round takes on *their* clocks, and what it gains not to wait."""

from fedsim import load_config, simulate
from fedsim.measure.runs import load_run
from fedsim.measure.summary import summarize

PHONES = [
    "task.name=digits",
    "model.name=mlp",
    "federation.num_clients=12",
    "federation.participation=0.5",
    "federation.rounds=3",
    "devices.profile=tiers",
    "devices.tiers={phone-low=0.5, phone-high=0.5}",
    "output.report=false",
]


def main() -> None:
    for policy, more in (("all", []), ("first-k", ["clock.over_selection=1.5"])):
        given = [*PHONES, f"clock.policy={policy}", *more, f"output.name=lesson-7-{policy}"]
        summary = summarize(load_run(simulate(load_config(None, given)).folder))
        late = summary.turns - summary.ok_turns
        print(f"{policy:<8} {summary.virtual_s:.3f} virtual seconds, {late} of {summary.turns} turns came too late")


if __name__ == "__main__":
    main()
