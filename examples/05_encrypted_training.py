"""Lesson 5. The same run in the clear and encrypted: what changes is bytes and seconds, not the model."""

from fedsim import load_config, simulate
from fedsim.measure.runs import load_run
from fedsim.measure.summary import summarize

SMALL = ["task.name=digits", "model.name=mlp", "federation.num_clients=6", "federation.rounds=2", "output.report=false"]


def main() -> None:
    for protection in ("plain", "rlwe", "rlwe-threshold"):
        given = [*SMALL, f"protection.name={protection}", "training.lr=0.1", f"output.name=lesson-5-{protection}"]
        summary = summarize(load_run(simulate(load_config(None, given)).folder))
        print(
            f"{protection:<15} accuracy {summary.final_accuracy:.3f}  up {summary.upload_wire_bytes / 1e6:5.2f} MB"
            f"  seal {summary.phase_s['seal']:.3f} s  open {summary.phase_s['open']:.3f} s"
        )


if __name__ == "__main__":
    main()
