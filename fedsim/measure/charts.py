"""What is drawn, apart from how: every chart of one run, or of several laid over each other."""

from collections.abc import Sequence

from fedsim.measure import _client_charts, _curves
from fedsim.measure._chart import Chart
from fedsim.measure.metrics import ACCURACY, LOSS
from fedsim.measure.runs import Run

#: Beyond so many runs only the charts that lay them over each other are drawn.
MOST_SINGLE = 6


def charts(runs: Sequence[Run]) -> list[Chart]:
    """Return every chart that the runs have data for, in reading order."""
    if len(runs) > MOST_SINGLE:
        return [chart for chart in _overlaid(runs) if chart is not None]
    tagged = [(run, f"_{number}" if len(runs) > 1 else "") for number, run in enumerate(runs, 1)]
    found: list[Chart | None] = [
        *_overlaid(runs),
        *(_client_charts.timeline(run, tag) for run, tag in tagged),
        *(_client_charts.turn_times(run, tag) for run, tag in tagged),
        *(_client_charts.outcomes(run, tag) for run, tag in tagged),
        *_client_charts.partitions(runs),
    ]
    return [chart for chart in found if chart is not None]


def _overlaid(runs: Sequence[Run]) -> list[Chart | None]:
    return [
        _curves.metric(runs, ACCURACY, "Accuracy", 100.0, "accuracy (%)"),
        _curves.metric(runs, LOSS, "Loss", 1.0, "loss"),
        _curves.against_bytes(runs),
        _curves.against_time(runs, virtual=True),
        _curves.against_time(runs, virtual=False),
        _curves.traffic(runs, total=False),
        _curves.traffic(runs, total=True),
        _curves.phases(runs[0]) if len(runs) == 1 else _curves.phases_of_runs(runs),
        _curves.spread(runs),
    ]
