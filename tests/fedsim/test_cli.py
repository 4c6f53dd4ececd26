"""The command line: what it starts, prints and ends with."""

import json
import os
import re
import signal
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from fedsim import doctor
from fedsim.cli import app
from fedsim.config import FAMILIES, PROTECTIONS, STRATEGIES, RunConfig
from fedsim.errors import EXIT_CODES, ConfigError, EngineError, FedsimError, Problem, TooFewReplies, exit_code_of
from fedsim.events import Observer, RoundEnd


class FakeRunner(types.ModuleType):
    """Stands in for fedsim.runner: notes what it was given, and plays one round or raises."""

    def __init__(self) -> None:
        super().__init__("fedsim.runner")
        self.configs: list[RunConfig] = []
        self.error: BaseException | None = None

    def run(self, config: RunConfig, observer: Observer) -> None:
        self.configs.append(config)
        observer.started(config, Path("runs/x"))
        if self.error is not None:
            raise self.error
        observer.round_end(
            RoundEnd(
                round=1,
                rounds=1,
                metrics={"accuracy": 0.5},
                upload_bytes=1,
                download_bytes=2,
                seconds=0.1,
                sampled=3,
                replied=3,
            )
        )
        observer.finished({"report": "runs/x/report.html"})


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRunner]:
    fake = FakeRunner()
    monkeypatch.setitem(sys.modules, "fedsim.runner", fake)
    yield fake


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_run_without_arguments_runs_the_main_job(runner: FakeRunner) -> None:
    done = call("run")
    assert done.exit_code == 0, done.output
    assert runner.configs == [RunConfig()]
    assert "round 1/1  accuracy 0.5000" in done.stdout
    assert "report: runs/x/report.html" in done.stdout


def test_run_reads_file_options_and_overrides(runner: FakeRunner, tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("seed = 9\n[federation]\nrounds = 4\n")
    options = [
        "--strategy",
        "fedprox",
        "--protection",
        "bfv",
        "--engine",
        "ray",
        "--clients",
        "8",
        "--name",
        "2026-01-02",
    ]
    done = call("run", str(path), *options, "--set", "strategy.mu=0.5", "-s", "federation.rounds=6")
    assert done.exit_code == 0, done.output
    (config,) = runner.configs
    assert (config.seed, config.federation.rounds, config.federation.num_clients) == (9, 6, 8)
    assert (config.strategy.name, config.strategy.mu, config.protection.name) == ("fedprox", 0.5, "bfv")
    assert (config.engine.name, config.output.name) == ("ray", "2026-01-02")


def test_json_lines_only(runner: FakeRunner) -> None:
    done = call("run", "--json")
    assert [json.loads(line)["event"] for line in done.stdout.splitlines()] == ["started", "round_end", "finished"]


def test_quiet_says_nothing(runner: FakeRunner) -> None:
    done = call("run", "--quiet")
    assert (done.exit_code, done.output) == (0, "")


def test_bad_settings_start_nothing(runner: FakeRunner) -> None:
    done = call("run", "--rounds", "0", "--set", "lr=1")
    assert (done.exit_code, runner.configs) == (2, [])
    assert "2 problems in the settings:" in done.stderr
    assert "did you mean training.lr?" in done.stderr


def test_bad_usage_is_code_2(runner: FakeRunner) -> None:
    assert call("run", "--rounds", "x").exit_code == 2
    assert call("nonsense").exit_code == 2
    assert call("run", "none.toml").exit_code == 2


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (FedsimError("x"), 1),
        (ConfigError([Problem("a", "b", "c", "d")]), 2),
        (TooFewReplies("3 of 20"), 3),
        (EngineError("ray is gone"), 5),
        (KeyboardInterrupt(), 130),
    ],
)
def test_each_error_has_its_exit_code(runner: FakeRunner, error: BaseException, code: int) -> None:
    runner.error = error
    done = call("run", "--json")
    assert done.exit_code == code
    assert code in EXIT_CODES
    assert "Traceback" not in done.output
    last = json.loads(done.stdout.splitlines()[-1])
    assert (last["event"], last["exit_code"]) == ("failed", code)


def test_an_unforeseen_error_keeps_its_traceback(runner: FakeRunner) -> None:
    runner.error = ZeroDivisionError("boom")
    done = call("run")
    assert done.exit_code == 1
    assert done.exception is runner.error


def test_errors_of_other_rooms_have_codes() -> None:
    from crypto.errors import BackendUnavailable, BudgetExceeded, WireError
    from strategies.errors import Incompatible

    assert [exit_code_of(e("x")) for e in (BackendUnavailable, BudgetExceeded, WireError)] == [4, 2, 1]
    assert exit_code_of(Incompatible("x")) == 2
    assert exit_code_of(ValueError("x")) is None
    stranger = type("BackendUnavailable", (Exception,), {"__module__": "elsewhere"})
    assert exit_code_of(stranger()) is None


@pytest.mark.report("D16")
def test_sigterm_stops_like_ctrl_c(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import sys, time, types\n"
        "fake = types.ModuleType('fedsim.runner')\n"
        "def run(config, observer):\n"
        "    try:\n"
        "        print('ready', flush=True)\n"
        "        time.sleep(60)\n"
        "    finally:\n"
        "        print('closed', flush=True)\n"
        "fake.run = run\n"
        "sys.modules['fedsim.runner'] = fake\n"
        "from fedsim.cli import main\n"
        "main()\n"
    )
    command = [sys.executable, str(tmp_path / "slow.py"), "run"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "closed\n")
    assert err == "interrupted\n"


def test_config_prints_what_it_read(tmp_path: Path) -> None:
    done = call("config", "--set", "federation.rounds=3")
    path = tmp_path / "c.toml"
    path.write_text(done.stdout)
    assert "rounds = 3" in done.stdout
    assert call("config", str(path)).stdout == done.stdout
    assert "fedprox" in call("config", "--template").stdout
    assert call("config", "--set", "x=1").exit_code == 2


def test_a_template_of_other_settings_than_the_defaults_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('[protection]\nname = "bfv"\n')
    for more in (["--set", "protection.name=bfv"], [str(path)]):
        done = call("config", "--template", *more)
        assert done.exit_code == 2
        assert "the defaults alone" in " ".join(done.stderr.split())


def test_list_shows_choices_and_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "backend_missing", lambda backend: f"{backend}: not here")
    done = call("list", "protections")
    lines = {line.split()[0]: line for line in done.stdout.splitlines()[1:]}
    assert lines.keys() == set(PROTECTIONS)
    assert lines["bfv"].endswith("[not available: tenseal: not here]")
    assert "not available" not in lines["preamble"]
    rows = json.loads(call("list", "strategies", "--json").stdout)["strategies"]
    assert [row["name"] for row in rows] == [name for name in STRATEGIES if name not in FAMILIES] + list(
        FAMILIES.values()
    )
    assert rows[1]["summary"].endswith("Keys: mu.")


def test_list_asks_the_tasks_room(monkeypatch: pytest.MonkeyPatch) -> None:
    info = types.SimpleNamespace(name="digits", summary="small", reason_if_not="")
    data: Any = types.ModuleType("fedsim.tasks.data")
    data.list_datasets = lambda: [info]
    models: Any = types.ModuleType("fedsim.tasks.models")
    models.list_models = lambda: {"mlp": "a net"}
    monkeypatch.setitem(sys.modules, "fedsim.tasks.data", data)
    monkeypatch.setitem(sys.modules, "fedsim.tasks.models", models)
    assert call("list", "tasks").stdout == "tasks:\n  digits  small\n"
    assert call("list", "models").stdout == "models:\n  mlp  a net\n"


@pytest.mark.parametrize(("status", "code"), [("ok", 0), ("warning", 0), ("missing", 0), ("failed", 4)])
def test_doctor_fails_only_where_a_run_would(monkeypatch: pytest.MonkeyPatch, status: Any, code: int) -> None:
    check = doctor.Check("torch", status, "detail", "" if status == "ok" else "do this")
    monkeypatch.setattr(doctor, "examine", lambda folder: [check])
    done = call("doctor")
    assert done.exit_code == code
    assert ("-> do this" in done.stdout) == (status != "ok")
    (found,) = json.loads(call("doctor", "--json").stdout)
    assert found["status"] == status


def test_report_names_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    report: Any = types.ModuleType("fedsim.measure.report")
    report.write_report = lambda runs, out: out or runs[0] / "report.html"
    monkeypatch.setitem(sys.modules, "fedsim.measure.report", report)
    assert call("report", "runs/a", "runs/b").stdout == "report: runs/a/report.html\n"


def test_shows_its_version() -> None:
    done = call("--version")
    assert (done.exit_code, re.fullmatch(r"fedsim \d+\.\d+\S*\n", done.stdout) is not None) == (0, True)


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from fedsim.cli import app\n"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0\n"
        "print(sorted({'torch', 'ray', 'flwr', 'numpy', 'sklearn', 'pydantic'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_help_is_quick() -> None:
    before = os.times()
    subprocess.run([sys.executable, "-m", "fedsim.cli", "--help"], capture_output=True, check=True)
    after = os.times()
    cpu_s = after.children_user - before.children_user + after.children_system - before.children_system
    assert cpu_s < 1.0, "CPU seconds, not wall time: a busy machine must not fail this"


def test_readme_has_the_same_exit_codes() -> None:
    text = Path(__file__).parents[2].joinpath("README.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (\d+) \| (.+) \|$", text, flags=re.MULTILINE))
    assert rows == {str(code): meaning for code, meaning in EXIT_CODES.items()}
