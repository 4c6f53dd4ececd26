"""Every code block of README and docs runs, or says why it does not.

``console`` blocks run command by command, ``python`` blocks run, ``toml`` blocks are read as what they are. A page's
blocks share a folder, in their order, in which `experiments/` is the repository's.
"""

import os
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from docs_blocks import LANGUAGES, PAGES, ROOT, Block, blocks, parse, words
from forge import Done, Forge

from fedsim.config import config_from_dict

#: A block is short in seconds of work; how long that takes is the machine's affair.
pytestmark = pytest.mark.timeout(1200)

BLOCKS = {page: blocks(page) for page in PAGES}
CI = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
OURS = ("fedsim", "python", "pytest")


class Page:
    """A page's folder, and which of its blocks have run there."""

    def __init__(self, page: str, folder: Path, forge: Forge) -> None:
        self.blocks, self.folder, self.forge = BLOCKS[page], folder, forge
        self.done: set[int] = set()
        (folder / "experiments").symlink_to(ROOT / "experiments")
        for block in self.blocks:
            if block.title:
                target = folder / block.title
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(block.text, encoding="utf-8")

    def run(self, number: int, whole: bool) -> None:
        """Run a block after those above it, these in small and whatever becomes of them."""
        for before in range(number):
            block = self.blocks[before]
            if before not in self.done and not block.slow and not block.not_run and block.commands:
                self.done.add(before)
                self._console(block, whole=False, check=False)
        self.done.add(number)
        block = self.blocks[number]
        if block.commands:
            self._console(block, whole, check=True)
        elif block.language == "python" and not block.title:
            self._must(self.forge.run(["python", "-c", block.text], self.folder), block, "the block")

    def _console(self, block: Block, whole: bool, check: bool) -> None:
        for command in block.commands:
            given, output = words(command)
            more = [] if whole else shlex.split(block.small)
            done = self._call([*given, *more])
            if output and done.code == 0:
                (self.folder / output).write_text(done.output, encoding="utf-8")
            if check:
                self._must(done, block, command)

    def _call(self, given: list[str]) -> Done:
        if Path(given[0]).name in OURS:
            return self.forge.run(given, self.folder, timeout_s=3500)
        paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        done = subprocess.run(
            given, cwd=self.folder, capture_output=True, text=True, timeout=900, env={**os.environ, "PATH": paths}
        )
        return Done(done.returncode, done.stdout + done.stderr)

    @staticmethod
    def _must(done: Done, block: Block, what: str) -> None:
        assert done.code == block.fails, (
            f"{block.page}:{block.line}: {what} ended with {done.code}\n{done.output[-4000:]}"
        )


@pytest.fixture(scope="module")
def forge() -> Iterator[Forge]:
    made = Forge()
    yield made
    made.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, forge: Forge) -> dict[tuple[str, bool], Page]:
    class Made(dict[tuple[str, bool], Page]):
        def __missing__(self, key: tuple[str, bool]) -> Page:
            self[key] = Page(key[0], tmp_path_factory.mktemp(Path(key[0]).stem), forge)
            return self[key]

    return Made()


def runnable(block: Block) -> bool:
    if block.not_run or (block.commands and words(block.commands[0])[0][0] == "make"):
        return False
    return bool(block.commands) or (block.language == "python" and not block.title)


def cases(whole: bool) -> list[object]:
    """Return the blocks to run: as they are printed where `whole`, else in small where they have such a form."""
    found = []
    for page, inside in BLOCKS.items():
        for number, block in enumerate(inside):
            if not runnable(block) or (whole and not (block.slow or block.small)):
                continue
            slow = [pytest.mark.slow, pytest.mark.timeout(3600)] if whole else []
            if whole or not block.slow:
                found.append(pytest.param(page, number, id=f"{page}:{block.line}", marks=slow))
    return found


@pytest.mark.report("U28", "every command of README and docs runs, and their tables are compared with the code")
@pytest.mark.parametrize(("page", "number"), cases(whole=False))
def test_block_runs(page: str, number: int, pages: dict[tuple[str, bool], Page]) -> None:
    pages[page, False].run(number, whole=False)


@pytest.mark.parametrize(("page", "number"), cases(whole=True))
def test_long_block_runs_as_printed(page: str, number: int, pages: dict[tuple[str, bool], Page]) -> None:
    pages[page, True].run(number, whole=True)


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_of_a_known_kind(page: str) -> None:
    for block in BLOCKS[page]:
        assert block.language in LANGUAGES, f"{page}:{block.line}: {block.language!r}"
        if block.language in ("console", "bash"):
            assert block.commands, f"{page}:{block.line}: no line begins with '$ '"


@pytest.mark.parametrize("page", PAGES)
def test_make_is_run_by_continuous_integration_or_says_why_not(page: str) -> None:
    for block in BLOCKS[page]:
        for command in block.commands:
            if words(command)[0][0] == "make" and not block.not_run:
                assert command in CI, f"{page}:{block.line}: {command}: .ci/run must run it, or a comment say why not"


TOML = [(page, block) for page, inside in BLOCKS.items() for block in inside if block.language == "toml"]


@pytest.mark.parametrize(("page", "block"), TOML, ids=[f"{page}:{block.line}" for page, block in TOML])
def test_settings_are_settings(page: str, block: Block, tmp_path: Path) -> None:
    data = tomllib.loads(block.text)
    if "sweep" in data:
        from experiments.sweeps.spec import read_spec

        (tmp_path / "sweep.toml").write_text(block.text)
        assert read_spec(tmp_path / "sweep.toml", tmp_path).trials
    elif "project" in data or block.not_run:
        pass
    else:
        strategy = data.get("strategy", {}).get("name", "fedavg")
        if ":" in strategy and not strategy.startswith("flwr:"):
            del data["strategy"]  # A class in a file of the page; the commands below the block use it.
        assert config_from_dict(data).federation.rounds


def test_python_of_a_page_is_python() -> None:
    for page, inside in BLOCKS.items():
        for block in inside:
            if block.language == "python":
                compile(block.text, f"{page}:{block.line}", "exec")


def test_comments_before_blocks_are_understood() -> None:
    text = "<!-- small: --rounds 1 -->\n<!-- fails: 2 -->\n```console\n$ fedsim run \\\n    --clients 3\noutput\n```\n"
    (block,) = parse("page", text)
    assert (block.small, block.fails, block.commands) == ("--rounds 1", 2, ["fedsim run      --clients 3"])
    assert replace(block, line=0).line == 0
    with pytest.raises(ValueError, match="of no known kind"):
        parse("page", "<!-- slwo -->\n```python\n1\n```\n")
    with pytest.raises(ValueError, match="must say what"):
        parse("page", "<!-- not run -->\n```python\n1\n```\n")
