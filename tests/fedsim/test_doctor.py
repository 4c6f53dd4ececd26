"""The examination of a machine."""

from pathlib import Path

import pytest

from fedsim import doctor


def test_a_module_that_loads_has_a_version() -> None:
    import numpy

    assert doctor.import_probe("numpy") == (True, numpy.__version__)


def test_a_module_that_is_missing_says_why() -> None:
    assert doctor.import_probe("no_such_module") == (False, "ModuleNotFoundError: No module named 'no_such_module'")


def test_a_module_that_kills_its_process_does_not_kill_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deadly.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    loads, reason = doctor.import_probe("deadly")
    assert not loads
    assert "signal 4" in reason


def test_a_module_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sleepy.py").write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(doctor, "PROBE_TIMEOUT_S", 1)
    assert doctor.import_probe("sleepy") == (False, "did not load within 1 s")


@pytest.mark.parametrize(
    ("version", "status"), [((3, 10, 9), "failed"), ((3, 11, 0), "ok"), ((3, 13, 9), "ok"), ((3, 14, 0), "failed")]
)
def test_python_must_be_supported(version: tuple[int, int, int], status: str) -> None:
    assert doctor.check_python(version).status == status


def test_reads_processor_flags_of_both_families(tmp_path: Path) -> None:
    x86, arm = tmp_path / "x86", tmp_path / "arm"
    x86.write_text("processor : 0\nflags\t\t: fpu aes avx2 vaes\n\nflags : fpu aes\n")
    arm.write_text("processor : 0\nFeatures\t: fp asimd aes sha2\n")
    assert doctor.cpu_flags(x86) == ["aes", "avx2", "vaes"]
    assert doctor.cpu_flags(arm) == ["aes", "sha2", "asimd"]
    assert doctor.cpu_flags(tmp_path / "none") == []


def test_a_processor_without_aes_is_a_warning() -> None:
    assert doctor.check_processor(["avx2"]).status == "warning"
    assert doctor.check_processor(["aes"]).status == "ok"
    assert doctor.check_processor([]).status == "ok"


def test_the_compiled_module_loads() -> None:
    assert doctor.check_native().status == "ok"


def test_required_and_optional_packages_differ() -> None:
    def broken(module: str) -> tuple[bool, str]:
        return False, "boom"

    required = doctor.check_required("torch", "torch", broken)
    assert (required.status, required.detail) == ("failed", "boom")
    optional = doctor.check_optional("tenseal", broken)
    assert (optional.status, optional.remedy) == ("missing", "pip install 'fedsim[tenseal]'")
    assert "ckks, bfv" in optional.detail
    assert doctor.check_openfhe(lambda: (False, "no interpreter")).status == "missing"
    assert doctor.check_openfhe(lambda: (True, "through /x/python")).detail == "through /x/python"


def test_a_missing_backend_is_named() -> None:
    assert doctor.backend_missing("tenseal", lambda module: (False, "boom")) == "tenseal: boom"
    assert doctor.backend_missing("tenseal", lambda module: (True, "1")) == ""


def test_little_memory_or_space_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.check_memory(1 << 30).status == "warning"
    assert doctor.check_memory(8 << 30).status == "ok"
    monkeypatch.setattr(doctor, "MIN_SHM_BYTES", 1 << 62)
    monkeypatch.setattr(doctor, "MIN_DISK_BYTES", 1 << 62)
    assert "--shm-size" in doctor.check_shm(tmp_path).remedy
    assert doctor.check_disk(tmp_path / "not" / "yet").status == "warning"
    assert doctor.check_shm(tmp_path / "none").status == "ok"


def test_a_file_where_runs_should_be_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    assert doctor.check_disk(tmp_path / "runs").status == "failed"
    assert doctor.check_disk(tmp_path / "runs" / "x").status == "failed"


def test_examines_everything_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "openfhe_probe", lambda: (True, "here"))
    checks = doctor.examine(tmp_path, lambda module: (True, "1.0"))
    names = [check.name for check in checks]
    assert len(set(names)) == len(names)
    assert {"python", "processor", "crypto._native", "torch", "ray", "openfhe", "memory", "disk"} <= set(names)
    assert all(check.remedy for check in checks if check.status != "ok")
