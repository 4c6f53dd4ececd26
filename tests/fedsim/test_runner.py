"""Whole runs on real digits: engines agree to the bit, faults are named, folders are complete."""

import json
import re
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest
from flwr.app import Array, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from typer.testing import CliRunner

import fedsim.client_app as client_app
from fedsim import errors
from fedsim.checkpoint import latest_checkpoint, weights_sha256
from fedsim.cli import app
from fedsim.config import RunConfig, load_config, to_toml
from fedsim.events import NullObserver
from fedsim.measure.errors import RunFolderError
from fedsim.measure.ledger import Ledger, unaccounted
from fedsim.measure.runfolder import RunFolder
from fedsim.measure.runs import load_run
from fedsim.runner import _claim, run, simulate
from fedsim.server_app import new_folder, open_folder
from fedsim.simulation.flower import flwr_run
from strategies.records import wire_bytes

ROOT = Path(__file__).parents[2]
SMALL = ["task.name=digits", "model.name=mlp", "federation.num_clients=6", "federation.rounds=2", "output.report=false"]


def settings(folder, *more):
    return load_config(None, [*SMALL, f"output.folder={folder}", *more])


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return simulate(settings(tmp_path_factory.mktemp("plain"), "output.name=one", "engine.name=inline"))


def test_a_run_learns_and_leaves_a_complete_folder(tmp_path):
    result = simulate(
        settings(tmp_path, "federation.rounds=6", "training.lr=0.1", "output.report=true", "training.momentum=0.9")
    )
    assert result.metrics["server_accuracy"] > 0.75
    names = {p.name for p in result.folder.iterdir()}
    assert names >= {
        "config.toml", "run.json", "ledger.csv", "ledger.parquet", "metrics.csv", "metrics.parquet", "clients.csv",
        "partition.json", "checkpoints", "model.safetensors", "report.html", "figures",
    }  # fmt: skip
    record = json.loads((result.folder / "run.json").read_text())
    assert record["status"] == "finished" and record["weights_sha256"] == result.weights_sha256
    assert weights_sha256(latest_checkpoint(result.folder / "checkpoints").state) == result.weights_sha256
    assert load_config(result.folder / "config.toml").federation.rounds == 6


@pytest.mark.report("U62", "inline, one Ray worker and two give the same bits")
@pytest.mark.report("U69", "`engine.name` is inline, ray or flower, with the same bits")
@pytest.mark.parametrize("more", [["engine.workers=1"], ["engine.workers=2"]])
def test_ray_with_one_and_two_workers_gives_the_same_bits_as_inline(tmp_path, plain, more):
    assert simulate(settings(tmp_path, "engine.name=ray", *more)).weights_sha256 == plain.weights_sha256


@pytest.mark.report("U69")
def test_flowers_own_engine_gives_the_same_bits(tmp_path, plain):
    result = simulate(settings(tmp_path, "engine.name=flower"))
    assert result.weights_sha256 == plain.weights_sha256
    assert result.metrics["server_accuracy"] == pytest.approx(plain.metrics["server_accuracy"])


def test_flwr_run_of_this_repository_gives_the_same_bits(tmp_path, plain):
    """What `flwr run .` does in a clone, on a SuperLink of its own; without a name the run's number makes one."""
    config = settings(tmp_path)
    file = tmp_path / "settings.toml"
    file.write_text(to_toml(config))
    done = flwr_run(
        ROOT, {"config": str(file)}, num_supernodes=6, cpus=2, timeout_s=250, log_folder=tmp_path / "flower"
    )
    assert done.exit_code == 0
    (folder,) = tmp_path.glob("flower-*")
    record = json.loads((folder / "run.json").read_text())
    assert record["status"] == "finished" and record["weights_sha256"] == plain.weights_sha256


def test_another_seed_gives_other_weights(tmp_path, plain):
    assert simulate(settings(tmp_path, "seed=2", "engine.name=inline")).weights_sha256 != plain.weights_sha256


def test_phases_add_up_to_each_clients_round_time(plain):
    ledger = Ledger.read(plain.folder)
    gaps = unaccounted(ledger.table(), ledger.clients())
    assert gaps.num_rows == 12
    assert pc.max(gaps["share"]).as_py() < 0.01


@pytest.mark.report("U64", "the ledger's bytes equal the serialised messages; sealed and logical bytes stand apart")
def test_ledger_bytes_equal_the_serialised_messages(tmp_path, monkeypatch):
    """Counts what Flower would put on the wire for every message, both ways, beside the ledger."""
    counted = {"up": 0, "down": 0}
    inner = client_app.app._registered_funcs["train.default"]

    def size(content):
        return sum(len(o.deflate()) for o in get_all_nested_objects(content).values())

    def counting(message, context):
        counted["down"] += size(message.content)
        reply = inner(message, context)
        counted["up"] += size(reply.content)
        assert wire_bytes(reply.content) == size(reply.content)
        return reply

    monkeypatch.setitem(client_app.app._registered_funcs, "train.default", counting)
    result = simulate(settings(tmp_path, "engine.name=inline"))
    ledger = Ledger.read(result.folder)
    assert ledger.upload_bytes() == counted["up"]
    assert ledger.download_bytes() == counted["down"]
    run_ = load_run(result.folder)
    assert run_.partition is not None and sum(run_.partition.sizes) == 1438


def break_client(monkeypatch, fault, rounds=(1, 2), client=3):
    inner = client_app.app._registered_funcs["train.default"]

    def broken(message, context):
        hit = context.node_config["partition-id"] == client and message.content["config"]["server-round"] in rounds
        return fault(inner, message, context) if hit else inner(message, context)

    monkeypatch.setitem(client_app.app._registered_funcs, "train.default", broken)


def raises(inner, message, context):
    raise KeyError("x")


def says_nothing(inner, message, context):
    return None


def has_no_samples(inner, message, context):
    reply = inner(message, context)
    reply.content["metrics"] = MetricRecord({"num-examples": 0})
    return reply


def sends_no_update(inner, message, context):
    reply = inner(message, context)
    reply.content = RecordDict({"metrics": reply.content["metrics"]})
    return reply


def sends_a_damaged_update(inner, message, context):
    reply = inner(message, context)
    array = reply.content["sealed"]["0"]
    array.data = array.data[:-1] + bytes([array.data[-1] ^ 1])
    return reply


@pytest.mark.parametrize(
    ("fault", "outcome", "words"),
    [
        (raises, "dropped", r"KeyError: 'x'"),
        (says_nothing, "dropped", r"None"),
        (has_no_samples, "rejected", r"num-examples is 0"),
        (sends_no_update, "rejected", r"no sealed update"),
        (sends_a_damaged_update, "rejected", r"checksum does not match"),
    ],
)
def test_a_faulty_client_is_named_and_left_out(tmp_path, monkeypatch, fault, outcome, words):
    break_client(monkeypatch, fault)
    result = simulate(settings(tmp_path, "engine.name=inline"))
    turns = Ledger.read(result.folder).clients().to_pylist()
    bad = [t for t in turns if t["outcome"] != "ok"]
    assert [(t["round"], t["client"], t["outcome"]) for t in bad] == [(1, 3, outcome), (2, 3, outcome)]
    assert all(re.search(words, t["reason"]) for t in bad)


def test_without_a_faulty_client_the_result_is_that_of_the_others(tmp_path, monkeypatch, plain):
    break_client(monkeypatch, raises)
    one = simulate(settings(tmp_path, "engine.name=inline", "output.name=one"))
    break_client(monkeypatch, says_nothing)
    two = simulate(settings(tmp_path, "engine.name=inline", "output.name=two"))
    assert one.weights_sha256 == two.weights_sha256 != plain.weights_sha256


def test_too_few_replies_stop_the_run_with_the_last_good_model_saved(tmp_path, monkeypatch):
    whole = simulate(settings(tmp_path, "engine.name=inline", "federation.rounds=1", "output.name=one"))
    break_client(monkeypatch, raises, rounds=(2,))
    config = settings(tmp_path, "engine.name=inline", "federation.min_replies=6", "output.name=two")
    with pytest.raises(
        errors.TooFewReplies, match=r"round 2: 5 of 6 clients delivered(.|\n)*client 3(.|\n)*KeyError"
    ) as e:
        simulate(config)
    assert e.value.exit_code == errors.TOO_FEW_REPLIES
    point = latest_checkpoint(tmp_path / "two" / "checkpoints")
    assert point.round == 1 and weights_sha256(point.state) == whole.weights_sha256
    record = json.loads((tmp_path / "two" / "run.json").read_text())
    assert record["status"] == "failed" and "KeyError" in record["exit_reason"]


class Interrupting(NullObserver):
    def round_end(self, event):
        if event.round == 2:
            raise KeyboardInterrupt


@pytest.mark.report("D16", "the folder says `stopped`, nothing is left behind, and the run resumes")
def test_an_interrupted_run_is_consistent_and_resumes_to_the_same_bits(tmp_path):
    more = ["engine.name=inline", "strategy.name=fedadam", "federation.rounds=4", "output.report=true"]
    whole = simulate(settings(tmp_path, *more, "output.name=whole"))
    config = settings(tmp_path, *more, "output.name=cut")
    with pytest.raises(KeyboardInterrupt):
        run(config, Interrupting())
    folder = tmp_path / "cut"
    assert json.loads((folder / "run.json").read_text())["status"] == "stopped"
    assert (folder / "report.html").exists() and Ledger.read(folder).rounds() == [1, 2]
    resumed = simulate(config, resume=True)
    assert resumed.weights_sha256 == whole.weights_sha256
    assert Ledger.read(folder).rounds() == [1, 2, 3, 4]
    assert Ledger.read(folder).upload_bytes() == Ledger.read(whole.folder).upload_bytes()


def test_resuming_with_other_settings_is_refused(tmp_path, plain):
    config = settings(plain.folder.parent, "output.name=one", "engine.name=inline", "training.lr=0.3")
    with pytest.raises(errors.FedsimError, match="the settings differ"):
        simulate(config, resume=True)
    with pytest.raises(errors.FedsimError, match="holds no run to resume"):
        simulate(settings(tmp_path, "output.name=nothing"), resume=True)


@pytest.mark.parametrize(
    ("more", "words"),
    [("strategy.name=flwr:FedAvg", "do not save their state"), ("protection.name=bfv", "holds no keys")],
)
def test_runs_whose_state_is_elsewhere_cannot_resume(tmp_path, more, words):
    config = settings(tmp_path, "output.name=one", "federation.rounds=1", more)
    RunFolder.open(simulate(config).folder).update_status("stopped")
    with pytest.raises(errors.FedsimError, match=words):
        simulate(config, resume=True)


def test_the_command_line_resumes_a_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = settings("runs", "output.name=cut", "engine.name=inline", "federation.rounds=3")
    with pytest.raises(KeyboardInterrupt):
        run(config, Interrupting())
    done = CliRunner().invoke(app, ["run", "--resume", "runs/cut"])
    assert done.exit_code == 0, done.output
    assert Ledger.read(tmp_path / "runs" / "cut").rounds() == [1, 2, 3]
    assert CliRunner().invoke(app, ["run", "--resume", "runs/none"]).exit_code == 2
    assert CliRunner().invoke(app, ["run", "--resume", "runs/cut", "--rounds", "9"]).exit_code == 2
    monkeypatch.chdir(tmp_path / "runs")
    assert CliRunner().invoke(app, ["run", "--resume", "cut"]).exit_code == 2


def test_flowers_fedavg_agrees_with_ours_up_to_rounding(tmp_path, plain):
    result = simulate(settings(tmp_path, "engine.name=inline", "strategy.name=flwr:FedAvg"))
    for name, array in plain.state.arrays.items():
        np.testing.assert_allclose(result.state.arrays[name], array, atol=2e-6)
    ledger = Ledger.read(result.folder)
    assert ledger.upload_bytes() > 0 and ledger.download_bytes() > 0
    assert len(ledger.clients()) == 12


@pytest.mark.parametrize("name", ["FedMedian", "FedTrimmedAvg", "FedAvgM", "FedYogi", "Krum", "QFedAvg"])
def test_flowers_strategies_run_by_name(tmp_path, name):
    result = simulate(settings(tmp_path, "engine.name=inline", f"strategy.name=flwr:{name}", "federation.rounds=1"))
    assert np.isfinite(result.metrics["server_loss"])


def test_flowers_strategies_are_guarded_too(tmp_path, monkeypatch):
    def sends_nan(inner, message, context):
        reply = inner(message, context)
        record = reply.content["arrays"]
        name = next(iter(record))
        record[name] = Array(np.full(record[name].shape, np.nan, np.float32))
        return reply

    break_client(monkeypatch, sends_nan)
    result = simulate(settings(tmp_path, "engine.name=inline", "strategy.name=flwr:FedAvg"))
    bad = [t for t in Ledger.read(result.folder).clients().to_pylist() if t["outcome"] != "ok"]
    assert [(t["client"], t["outcome"]) for t in bad] == [(3, "rejected"), (3, "rejected")]
    assert "holds nan" in bad[0]["reason"]
    assert all(np.isfinite(a).all() for a in result.state.arrays.values())


@pytest.mark.parametrize("strategy", ["fedprox", "fedavgm", "fedadam"])
def test_own_strategies_run_by_name(tmp_path, strategy):
    result = simulate(settings(tmp_path, "engine.name=inline", f"strategy.name={strategy}"))
    assert np.isfinite(result.metrics["server_loss"])


def test_partial_participation_and_client_side_evaluation(tmp_path):
    result = simulate(
        settings(
            tmp_path, "engine.name=inline", "federation.participation=0.5", "federation.client_evaluation_fraction=1.0"
        )
    )
    # The clients' shares of the test set make up the test set.
    assert result.metrics["client_accuracy"] == pytest.approx(result.metrics["server_accuracy"])
    assert len([t for t in Ledger.read(result.folder).clients().to_pylist() if t["round"] == 1]) == 6


@pytest.mark.parametrize("buffers", ["average", "local", "first"])
def test_models_with_batch_norm_run_under_every_buffer_rule(tmp_path, buffers):
    more = ["model.name=resnet8", "model.options.norm=batch", "model.options.width=4", "federation.rounds=1"]
    result = simulate(settings(tmp_path, "engine.name=inline", f"federation.buffers={buffers}", *more))
    counters = [a for n, a in result.state.arrays.items() if n.endswith("num_batches_tracked")]
    assert counters and all(c.dtype == np.int64 and c.shape == () for c in counters)
    assert all((c > 0) == (buffers != "local") for c in counters)


def test_simulate_takes_a_config_made_in_python(tmp_path):
    config = RunConfig(
        task={"name": "breast-cancer"},
        model={"name": "logistic"},
        federation={"num_clients": 4, "rounds": 2},
        output={"folder": str(tmp_path), "report": False},
    )
    assert simulate(config).metrics["server_accuracy"] > 0.5


def files_of(folder):
    return {p.name: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.report("D18", "the second is refused")
def test_a_second_run_never_writes_into_the_folder_of_a_first(plain):
    before = files_of(plain.folder)
    with pytest.raises(RunFolderError, match="holds a run already; resume it or choose another name"):
        simulate(settings(plain.folder.parent, "output.name=one", "engine.name=inline", "federation.rounds=1"))
    assert files_of(plain.folder) == before


def test_a_served_app_takes_the_folder_of_its_launcher_only(tmp_path, plain):
    config = settings(tmp_path, "output.name=new")
    made = new_folder(config)
    assert open_folder(config).path == made.path
    with pytest.raises(RunFolderError, match="holds a run already"):
        open_folder(settings(plain.folder.parent, "output.name=one"))


@pytest.mark.report("D18")
def test_runs_without_a_name_that_start_at_once_get_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr("fedsim.runner.time.strftime", lambda form: "20260101-000000")
    paths = [_claim(settings(tmp_path), resume=False)[1].path for _ in range(3)]
    assert len(set(paths)) == 3
    (tmp_path / paths[0].name / "config.toml").rename(tmp_path / "elsewhere")
    assert _claim(settings(tmp_path), resume=False)[1].path not in paths


def test_an_engine_that_does_not_start_is_named_and_leaves_a_folder_that_says_so(tmp_path):
    config = settings(tmp_path, "output.name=lost", "engine.ray_address=nowhere")
    with pytest.raises(errors.EngineError, match="engine.ray_address = nowhere: .*could not be started.*doctor"):
        simulate(config)
    record = json.loads((tmp_path / "lost" / "run.json").read_text())
    assert record["status"] == "failed" and "nowhere" in record["exit_reason"] and record["ended"]


class InterruptingAtOnce(NullObserver):
    def started(self, config, folder):
        raise KeyboardInterrupt


@pytest.mark.report("D16")
def test_an_interrupt_before_the_first_round_leaves_a_folder_that_says_so(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(settings(tmp_path, "output.name=early", "output.report=true"), InterruptingAtOnce())
    assert json.loads((tmp_path / "early" / "run.json").read_text())["status"] == "stopped"


def test_a_model_that_a_server_step_ruins_is_never_the_last_good_one(tmp_path):
    more = ["output.name=ruined", "engine.name=inline", "strategy.name=fedadam", "strategy.server_lr=1e300"]
    with pytest.raises(errors.FedsimError, match="would hold NaN or infinity.*lower training.lr") as caught:
        simulate(settings(tmp_path, *more))
    assert errors.exit_code_of(caught.value) == errors.FAILED
    point = latest_checkpoint(tmp_path / "ruined" / "checkpoints")
    assert point.round == 0 and all(np.isfinite(a).all() for a in point.state.arrays.values())


@pytest.mark.report("D15")
def test_resuming_where_every_checkpoint_is_damaged_is_refused_and_keeps_the_records(tmp_path):
    config = settings(tmp_path, "output.name=hurt", "engine.name=inline", "federation.rounds=1")
    folder = simulate(config).folder
    RunFolder.open(folder).update_status("stopped")
    for path in (folder / "checkpoints").glob("*"):
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(errors.FedsimError, match="none of 1 checkpoints can be read.*checksum does not match"):
        simulate(config, resume=True)
    assert Ledger.read(folder).rounds() == [1]


@pytest.mark.parametrize("config", [1, None, {"seed": 1}, "settings.toml"])
def test_simulate_names_what_it_takes(config):
    with pytest.raises(TypeError, match="must be a RunConfig: make one with fedsim.config.load_config"):
        simulate(config)
