"""Settings and records that nobody would write: each is refused soon, in three parts."""

import pytest

from fedsim.config import config_from_dict, from_run_config, load_config
from fedsim.errors import ConfigError
from fedsim.measure.errors import RunFolderError
from fedsim.measure.runfolder import RunFolder

DEEP = ".".join(["a"] * 3000)


@pytest.mark.report("D19", "refused at once with the value, the rule and the remedy; code 2, and nothing is made")
@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("# " + "x" * 1_000_000, "is larger than 256 kB"),
        ("seed = " + "9" * 10_000, "is not TOML: Exceeds the limit"),
        ("x = " + "[" * 100_000, "is not TOML: nested deeper than 32"),
        ("x = " + "[" * 40 + "]" * 40, "is not TOML: nested deeper than 32"),
        (f"{DEEP} = 1", "is not TOML: nested deeper than 32"),
        (f"[model.options.{DEEP}]\nb = 1", "is not TOML: nested deeper than 32"),
        ("seed = 1\0", "is not TOML"),
        ("\n".join(f"k{i} = {i}" for i in range(3000)), "3000 keys: must be at most 2000"),
        ('output.folder = "a\\u0000b"', r"output.folder = a\\0b: holds a zero character"),
        ('model.options.a = ["x", "\\u0000"]', "model.options.a = .*: holds a zero character"),
    ],
)
def test_files_without_end_or_sense_are_refused(tmp_path, text, rule):
    path = tmp_path / "settings.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=rule) as caught:
        load_config(path)
    assert all(p.value and p.rule and p.remedy for p in caught.value.problems) and len(str(caught.value)) < 10_000


def test_a_device_without_end_is_no_file_of_settings():
    with pytest.raises(ConfigError, match="/dev/zero: is larger than 256 kB"):
        load_config("/dev/zero")


@pytest.mark.parametrize(
    ("override", "rule"),
    [
        (f"{DEEP}=1", "must be section.key=value"),
        (f"model.options.{DEEP}=1", "must be section.key=value"),
        ("seed=" + "9" * 10_000, "must be a whole number"),
        ("tra\udce9ning.lr=1", "is a key that is no text"),
    ],
)
def test_overrides_without_end_or_sense_are_refused(override, rule):
    with pytest.raises(ConfigError, match=rule):
        load_config(None, [override])


def test_flat_settings_without_end_are_refused():
    for flat in ({DEEP: 1}, {"model.options": "json:" + "[" * 100_000}):
        with pytest.raises(ConfigError):
            from_run_config(flat)
    inner = {}
    for _ in range(40):
        inner = {"a": inner}
    with pytest.raises(ConfigError, match="is nested too deeply"):
        config_from_dict({"model": {"options": inner}})


def test_a_mark_of_the_byte_order_is_no_damage(tmp_path):
    path = tmp_path / "settings.toml"
    path.write_bytes(b"\xef\xbb\xbfseed = 7\r\n")
    assert load_config(path).seed == 7


def test_a_record_nested_without_end_is_refused(tmp_path):
    (tmp_path / "run.json").write_text("[" * 100_000)
    with pytest.raises(RunFolderError, match="is not a run's record .nested deeper than 32"):
        RunFolder(tmp_path).record()
