"""A process that has loaded everything heavy, and forks for each command: a command then takes its own time alone."""

import io
import json
import os
import runpy
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Done:
    """How a command ended: its exit code, and standard output and error together."""

    code: int
    output: str


class Forge:
    """Runs `fedsim ...`, `python ...` and `pytest ...` in forks of one process."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "160", "FLWR_TELEMETRY_ENABLED": "0"}
        environment.pop("PYTEST_CURRENT_TEST", None)
        self.process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def run(self, words: list[str], folder: Path, timeout_s: float = 280.0) -> Done:
        """Run a command in a folder."""
        with tempfile.NamedTemporaryFile("r", suffix=".out") as output:
            order = {"words": words, "folder": str(folder), "output": output.name, "timeout_s": timeout_s}
            try:
                line = self._answer(order)
            except BaseException:
                # A test's time was over: the next command must not get this one's answer.
                self.process.kill()
                self._start()
                raise
            return Done(json.loads(line)["code"], output.read())

    def _answer(self, order: dict) -> str:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the process that runs commands is gone")
        return line

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(timeout=60)


def _preload() -> None:
    import importlib

    for name in ("torch", "fedsim.cli", "fedsim.config", "fedsim.runner", "fedsim.measure.report", "experiments"):
        importlib.import_module(name)


def _become(words: list[str]) -> None:
    program, arguments = Path(words[0]).name, words[1:]
    sys.argv = [program, *arguments]
    if program == "fedsim":
        from fedsim.cli import main

        main()
    elif program == "pytest":
        import pytest

        sys.path.insert(0, os.getcwd())
        sys.exit(pytest.main(arguments))
    elif arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        sys.path.insert(0, os.getcwd())
        exec(compile(arguments[1], "<block>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = arguments
        sys.path.insert(0, os.path.dirname(os.path.abspath(arguments[0])))
        runpy.run_path(arguments[0], run_name="__main__")


def _child(order: dict) -> None:
    import signal

    os.chdir(order["folder"])
    os.environ["PWD"] = order["folder"]
    out = os.open(order["output"], os.O_WRONLY | os.O_APPEND)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0), os.dup2(out, 1), os.dup2(out, 2)
    sys.stdout = io.TextIOWrapper(os.fdopen(1, "wb", closefd=False), line_buffering=True)
    sys.stderr = io.TextIOWrapper(os.fdopen(2, "wb", closefd=False), line_buffering=True)
    signal.alarm(max(1, int(order["timeout_s"])))
    code = 0
    try:
        _become(order["words"])
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            print(error.code)
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    import atexit

    atexit._run_exitfuncs()
    sys.stdout.flush(), sys.stderr.flush()
    os._exit(code)


def _serve() -> None:
    _preload()
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            _child(order)
        _, status = os.waitpid(child, 0)
        answers.write(json.dumps({"code": os.waitstatus_to_exitcode(status)}) + "\n")
        answers.flush()


if __name__ == "__main__":
    _serve()
