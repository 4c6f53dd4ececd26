"""Files in memory: what is written is read, nothing stays, forks do not share."""

import gc
import os
from pathlib import Path

import pytest

from crypto import _memory_file
from crypto._memory_file import MemoryFile


class Text:
    """Writes itself to a path, as the library's objects do."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def save(self, path: str, /) -> None:
        Path(path).write_bytes(self._data)


@pytest.fixture(params=["memory", "temporary"])
def file(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> MemoryFile:
    if request.param == "temporary":
        monkeypatch.delattr(_memory_file.os, "memfd_create", raising=False)
        monkeypatch.setattr(_memory_file.tempfile, "tempdir", str(tmp_path))
    elif not hasattr(os, "memfd_create"):
        pytest.skip("no memfd on this system")
    return MemoryFile()


def test_returns_what_was_written_whatever_came_before(file: MemoryFile) -> None:
    for data in (b"long long text", b"short", b"", b"x" * 100_000):
        assert file.save(Text(data)) == data


def test_the_path_reads_as_the_data_and_is_emptied(file: MemoryFile) -> None:
    for data in (b"a secret", b"s"):
        with file.holding(data) as path:
            assert Path(path).read_bytes() == data
        assert Path(path).read_bytes() == b""


def test_it_is_emptied_after_an_error(file: MemoryFile) -> None:
    with pytest.raises(RuntimeError), file.holding(b"a secret") as path:
        raise RuntimeError
    assert Path(path).read_bytes() == b""


def test_a_temporary_file_is_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delattr(_memory_file.os, "memfd_create", raising=False)
    monkeypatch.setattr(_memory_file.tempfile, "tempdir", str(tmp_path))
    file = MemoryFile()
    file.save(Text(b"text"))
    (left,) = tmp_path.iterdir()
    assert left.stat().st_mode & 0o077 == 0
    del file
    gc.collect()
    assert not list(tmp_path.iterdir())


def test_a_forked_process_has_a_file_of_its_own(file: MemoryFile) -> None:
    file.save(Text(b"opens it"))
    with file.holding(b"parent's") as path:
        child = os.fork()
        if child == 0:
            same = file.save(Text(b"child's")) == b"child's"
            os._exit(0 if same else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert Path(path).read_bytes() == b"parent's"
