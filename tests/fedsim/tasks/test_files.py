"""One's own data, in each form that it may have."""

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from pyarrow import csv, parquet

from crypto import InputError
from fedsim.config import load_config, to_run_config
from fedsim.site import site_of
from fedsim.tasks.data import load_dataset
from fedsim.tasks.errors import BadOption, DataUnavailable

X = np.arange(40, dtype=np.float32).reshape(20, 2)
Y = np.tile(np.arange(2), 10)


def table():
    return pa.table({"a": X[:, 0], "label": Y, "b": X[:, 1]})


def write_csv(path):
    csv.write_csv(table(), path / "d.csv")
    return path / "d.csv"


def write_parquet(path):
    parquet.write_table(table(), path / "d.parquet")
    return path / "d.parquet"


def write_torch(path):
    torch.save({"x": torch.tensor(X), "y": torch.tensor(Y)}, path / "d.pt")
    return path / "d.pt"


def write_numpy(path):
    np.savez(path / "d.npz", x=X, y=Y)
    return path / "d.npz"


@pytest.mark.parametrize("write", [write_csv, write_parquet, write_torch, write_numpy])
def test_the_same_rows_come_from_every_form(write, tmp_path):
    found = load_dataset("files", path=str(write(tmp_path)), shape=(2,), classes=2)
    assert (len(found.train_y), len(found.test_y), found.num_classes, found.task_kind) == (16, 4, 2, "tabular")
    x, y = np.concatenate([found.train_x, found.test_x]), np.concatenate([found.train_y, found.test_y])
    order = np.argsort(x[:, 0])
    np.testing.assert_array_equal(x[order], X)
    np.testing.assert_array_equal(y[order], Y)


@pytest.mark.parametrize(("shape", "mode"), [((1, 4, 6), "L"), ((3, 4, 6), "RGB")])
def test_pictures_are_scaled_and_named_by_their_folders(tmp_path, shape, mode):
    for name, grey in (("dark", 10), ("bright", 200)):
        (tmp_path / name).mkdir()
        for number in range(5):
            Image.new(mode, (12, 8), grey if mode == "L" else (grey, grey, grey)).save(
                tmp_path / name / f"{number}.png"
            )
    (tmp_path / "dark" / "notes.txt").write_text("no picture")
    found = load_dataset("files", path=str(tmp_path), shape=shape, classes=("dark", "bright"))
    assert found.train_x.shape == (8, *shape) and found.train_x.dtype == np.uint8
    assert {(int(y), int(x.max())) for x, y in zip(found.train_x, found.train_y, strict=True)} == {(0, 10), (1, 200)}


def test_without_a_path_there_are_shape_and_classes_and_no_examples():
    found = load_dataset("files", shape=(2,), classes=3)
    assert (len(found.train_y), len(found.test_y), found.num_classes, found.input_shape) == (0, 0, 3, (2,))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shape": (2,)}, "needs both"),
        ({"classes": 2}, "needs both"),
        ({"shape": (3,), "classes": 2}, r"shape \(2,\): task.options.shape says \(3,\)"),
        ({"shape": (2,), "classes": ("0",)}, "needs both"),
        ({"shape": (2,), "classes": ("0", "2")}, "has class '1'"),
        ({"shape": (2,), "classes": 2, "label": "kind"}, "has no column 'kind'"),
        ({"shape": (2,), "classes": 2, "label": "a"}, "labels from 0 to 38"),
    ],
)
def test_refuses_options_that_do_not_fit(tmp_path, options, message):
    with pytest.raises(BadOption, match=message):
        load_dataset("files", path=str(write_csv(tmp_path)), **options)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "a,label\n1,5\n", r"labels from 5 to 5"),
        ("b.csv", "a,label\nx,0\n", "is no numbers"),
        ("c.csv", "a,label\nnan,0\n", "1 values that are not finite"),
        ("d.pt", "no tensors", "cannot be read"),
        ("e.npz", "no arrays", "cannot be read"),
        ("f.xlsx", "", "unknown form"),
    ],
)
def test_refuses_files_that_do_not_fit(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(BadOption, match=message):
        load_dataset("files", path=str(tmp_path / name), shape=(1,), classes=2)


def test_refuses_what_is_not_there(tmp_path):
    with pytest.raises(DataUnavailable, match="does not exist"):
        load_dataset("files", path=str(tmp_path / "none"), shape=(1,), classes=2)
    with pytest.raises(BadOption, match="no pictures"):
        load_dataset("files", path=str(tmp_path), shape=(1, 2, 2), classes=2)


SETTINGS = ["task.name=files", "task.options={shape=[2], classes=2}", "model.name=mlp"]
BLIND = ["federation.server_evaluation=false", "federation.client_evaluation_fraction=1.0", "federation.num_clients=3"]


def test_a_client_trains_on_its_own_rows_alone_and_the_server_has_none(tmp_path):
    run_config = to_run_config(load_config(None, [*SETTINGS, *BLIND]))
    site = site_of(run_config, {"data": str(write_csv(tmp_path))})
    assert len(site.train_data(1)[1]) == 16 and len(site.test_data(1)[1]) == 4
    server = site_of(run_config)
    assert server.own_data and not server.dataset.train_y.size
    assert server.initial.layout.hash == site.initial.layout.hash


def test_refuses_own_data_where_the_task_brings_its_own(tmp_path):
    site = site_of(to_run_config(load_config(None, ["task.name=digits"])), {"data": str(write_csv(tmp_path))})
    with pytest.raises(InputError, match="set task.name = files"):
        _ = site.dataset
