import html.parser
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
from PIL import Image

from fedsim.measure._chart import Bars
from fedsim.measure._plotly import figure
from fedsim.measure.charts import charts
from fedsim.measure.errors import LedgerError, ReportError, RunFolderError
from fedsim.measure.ledger import Ledger
from fedsim.measure.metrics import Metrics
from fedsim.measure.report import Options, write_report
from fedsim.measure.runfolder import RunFolder, now
from fedsim.measure.runs import load_run

MakeRun = Callable[..., Path]
NO_PNG = Options(png=False)
ONE_RUN = {"accuracy", "loss", "accuracy_bytes", "accuracy_virtual_time", "accuracy_measured_time", "bytes"}
ONE_RUN |= {"bytes_total", "phases", "turns", "timeline", "turns_by_client", "outcomes", "partition"}
NASTY = '</script><script>alert("x")</script><img src=x onerror=alert(1)> $x^2$ & {{ 7 * 7 }}'


class Page(html.parser.HTMLParser):
    """Tags with their attributes, and the text outside of scripts and styles."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: dict[str, str] = {}
        self.text = ""
        self._inside: str | None = None
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = (dict(attrs).get("id") or tag) if tag in ("script", "style") else None

    def handle_endtag(self, tag: str) -> None:
        self._inside = None

    def handle_data(self, data: str) -> None:
        if self._inside is None:
            self.text += data
        else:
            self.scripts[self._inside] = self.scripts.get(self._inside, "") + data


def page_of(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


def test_one_run_has_every_figure_in_html_and_png(make_run: MakeRun) -> None:
    run = make_run(rounds=3, clients=5)
    path = write_report([run])
    assert path == run / "report.html"
    assert {file.stem for file in (run / "figures").iterdir()} == ONE_RUN
    with Image.open(run / "figures" / "accuracy.png") as picture:
        assert picture.width > 800 and len(picture.convert("RGB").getcolors(1 << 24) or []) > 20
    page = page_of(path)
    places = [attrs["data-figure"] for _, attrs in page.tags if "data-figure" in attrs]
    assert set(places) == ONE_RUN == set(json.loads(page.scripts["figures"]))


def test_the_page_needs_no_network_and_no_other_file(make_run: MakeRun) -> None:
    page = page_of(write_report([make_run(rounds=2, clients=3)], options=NO_PNG))
    for tag, attrs in page.tags:
        assert "src" not in attrs and (tag != "link"), (tag, attrs)
        assert (attrs.get("href") or "#").startswith("#"), (tag, attrs)
    policy = next(attrs["content"] for tag, attrs in page.tags if attrs.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None and policy.startswith("default-src 'none'")


def test_figures_hold_the_ledgers_numbers(make_run: MakeRun) -> None:
    run = load_run(make_run(rounds=3, clients=4, participation=1.0, model_bytes=1_000_000))
    by_key = {chart.key: figure(chart) for chart in charts([run])}
    up = by_key["bytes_total"]["data"][0]
    assert up["name"] == "up"
    assert up["y"] == pytest.approx([run.ledger.upload_bytes(1) * k / 1e6 for k in (1, 2, 3)], rel=1e-5)
    accuracy = by_key["accuracy"]["data"][0]
    want = run.metrics.series("accuracy", "server")
    assert accuracy["x"] == list(want) and accuracy["y"] == pytest.approx([100 * v for v in want.values()], rel=1e-5)
    stacked = [sum(layer["y"][0] for layer in by_key["phases"]["data"])]
    assert stacked == pytest.approx([run.ledger.total("measured_s", round=1)], rel=1e-4)
    assert run.partition is not None
    cells = [[cell or 0 for cell in row] for row in by_key["partition"]["data"][0]["z"]]
    assert cells == run.partition.histogram
    assert sum(sum(layer["y"]) for layer in by_key["outcomes"]["data"]) == run.turns.num_rows


def test_plotly_accepts_every_figure(make_run: MakeRun) -> None:
    runs = [load_run(make_run(name, rounds=2, clients=3)) for name in ("a", "b")]
    for chart in [*charts(runs), *charts(runs[:1])]:
        text = json.dumps(figure(chart))
        real = re.sub(r'"color": "c\d"', '"color": "#123456"', text).replace(
            '"colorscale": "heat"', '"colorscale": "Blues"'
        )
        go.Figure(json.loads(real))


def test_columns_with_long_names_lie_down() -> None:
    def painted(names: list[str]) -> dict[str, Any]:
        words = {"key": "k", "group": "Time", "title": "t", "note": "n", "x_label": "", "y_label": "time (s)"}
        layers = [("train", [float(n) for n in range(len(names))], 0)]
        return figure(Bars(**words, x=names, layers=layers))

    standing, lying = painted(["bfv", "plain"]), painted([f"fedavg, alpha 0.{n}, participation 0.5" for n in range(20)])
    assert standing["data"][0]["x"] == ["bfv", "plain"] and "height" not in standing["layout"]
    assert lying["data"][0]["orientation"] == "h" and lying["data"][0]["x"][19] == 19.0
    assert lying["layout"]["xaxis"]["title"]["text"] == "time (s)" and lying["layout"]["height"] >= 20 * 18


def test_several_runs_are_laid_over_each_other(make_run: MakeRun, tmp_path: Path) -> None:
    folders = [make_run("plain", rounds=3), make_run("bfv", rounds=3, expansion=4, protection="bfv")]
    path = write_report(folders, options=NO_PNG)
    assert path == folders[0].parent / "comparison" / "report.html"
    page = page_of(path)
    figures = json.loads(page.scripts["figures"])
    assert [trace["name"] for trace in figures["bytes"]["data"] if trace["showlegend"]] == ["plain", "bfv"]
    assert "partition" in figures, "one partition is shared by both"
    assert (
        "protection.name" in page.text and "strategy.name" not in page.text.split("Record of")[0].split("differs in")[1]
    )
    assert write_report(folders, tmp_path / "x.html", NO_PNG) == tmp_path / "x.html"
    assert write_report(folders, tmp_path / "dir", NO_PNG) == tmp_path / "dir" / "report.html"


def test_runs_of_one_name_are_told_apart(make_run: MakeRun, tmp_path: Path) -> None:
    folders = [make_run("run", root=tmp_path / group, rounds=2, clients=3) for group in ("first", "second")]
    page = page_of(write_report(folders, options=NO_PNG))
    assert "first/run" in page.text and "second/run" in page.text


def test_strings_of_strangers_stay_strings(make_run: MakeRun) -> None:
    run = make_run("run <b>$x$", rounds=2, clients=6, drops=0.9, reasons=(NASTY,), status="failed", reason=NASTY)
    other = make_run("other & co", rounds=2, clients=6)
    config = run / "config.toml"
    config.write_text(f"[task]\nname = '''{NASTY}'''\n")
    for folders in ([run], [run, other]):
        page = page_of(write_report(folders, options=Options(png=folders == [run])))
        assert sum(tag == "script" for tag, _ in page.tags) == 4
        assert not [attrs for _, attrs in page.tags if "onerror" in attrs]
        assert page.text.count(NASTY) >= 3, "shown as it was written: headline, reason, exit reason"


def test_a_broken_config_is_shown_as_it_is(make_run: MakeRun) -> None:
    run = make_run(rounds=2, clients=3)
    (run / "config.toml").write_text("this is = not = toml")
    assert "this is = not = toml" in page_of(write_report([run], options=NO_PNG)).text


def test_a_run_that_just_began_can_be_reported(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "new", "", 1, {}, now())
    page = page_of(write_report([tmp_path / "new"]))
    assert "new is still running" in page.text
    assert not [attrs for _, attrs in page.tags if "data-figure" in attrs]


def test_a_killed_run_can_be_reported(make_run: MakeRun) -> None:
    run = make_run(rounds=3, clients=4, status="running")
    assert not (run / "ledger.parquet").exists()
    with (run / "ledger.csv").open("ab") as file:
        file.write(b'4,0,"trai')
    page = page_of(write_report([run], options=NO_PNG))
    assert max(json.loads(page.scripts["figures"])["bytes"]["data"][0]["x"]) == 3


def test_many_clients_are_thinned_and_said_so(make_run: MakeRun) -> None:
    run = load_run(make_run(rounds=1, clients=1000, participation=0.01))
    chart = next(chart for chart in charts([run]) if chart.key == "partition")
    assert "One client in 3 is drawn." in chart.note


def test_many_runs_get_only_the_figures_that_lay_them_over_each_other(make_run: MakeRun) -> None:
    page = page_of(write_report([make_run(f"run{k}", rounds=1, clients=2) for k in range(7)], options=NO_PNG))
    assert set(json.loads(page.scripts["figures"])) == ONE_RUN - {
        "timeline",
        "turns_by_client",
        "outcomes",
        "partition",
    }
    assert "each run's own report has them" in page.text


def test_nothing_left_out_is_said(make_run: MakeRun) -> None:
    page = page_of(write_report([make_run(rounds=2, clients=3, drops=0.0)], options=NO_PNG))
    assert "nobody; every client that was asked counted" in page.text


def test_refuses_nothing_twice_and_strangers(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run(rounds=1, clients=2)
    with pytest.raises(ReportError, match="at least one run"):
        write_report([])
    with pytest.raises(ReportError, match="pass each once"):
        write_report([run, run])
    with pytest.raises(RunFolderError, match="holds no run.json"):
        write_report([tmp_path])
    with pytest.raises(ReportError, match=r"80 % is 0\.8"):
        write_report([run], options=Options(target=80))


def test_a_hundred_rounds_of_a_hundred_clients_take_seconds(make_run: MakeRun) -> None:
    run = make_run(rounds=100, clients=100, participation=1.0)
    began = time.process_time()
    write_report([run])
    spent_s = time.process_time() - began
    assert spent_s < 10, f"{spent_s:.1f} s of CPU for 100 x 100 turns"


@pytest.mark.parametrize("name", ["ledger", "clients", "metrics"])
def test_a_damaged_table_is_named_and_its_copy_is_offered(tmp_path, name):
    ledger = Ledger(tmp_path)
    ledger.write()
    Metrics(tmp_path).write()
    read = Metrics.read if name == "metrics" else Ledger.read
    (tmp_path / f"{name}.parquet").write_bytes(b"PAR1")
    with pytest.raises(LedgerError, match=f"{name}.parquet is damaged .*delete it, and {name}.csv is read"):
        read(tmp_path)
    (tmp_path / f"{name}.parquet").unlink()
    (tmp_path / f"{name}.csv").write_text("a,b\n1,2\n")
    with pytest.raises(LedgerError, match=f"{name}.csv is damaged .*restore it"):
        read(tmp_path)


def test_a_report_of_a_damaged_ledger_is_refused_not_empty(tmp_path):
    RunFolder.create(tmp_path, "seed = 1\n", 1, {}, now())
    assert load_run(tmp_path).entries.num_rows == 0
    (tmp_path / "ledger.parquet").write_bytes(b"PAR1")
    with pytest.raises(LedgerError, match="ledger.parquet is damaged"):
        load_run(tmp_path)
