"""A deployment in containers, as a drill sees it."""

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROJECT, PORT = os.environ["COMPOSE_PROJECT_NAME"], os.environ["FEDSIM_TEST_PORT"]
SMALL = ("task.name=digits", "model.name=mlp", "training.lr=0.2", "output.report=false")
BEGAN = time.monotonic()


def say(text: str) -> None:
    print(f"[drills {time.monotonic() - BEGAN:5.0f}s] {text}", flush=True)


def docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], check=True, capture_output=True, text=True).stdout.strip()


def wait(what: Callable[[], Any], limit_s: float, why: str) -> None:
    end_s = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < end_s, f"not within {limit_s:g} s: {why}"
        time.sleep(0.3)


class Federation:
    """A deployment in containers.

    Args:
        fedsim: the program.
        folder: where it is made.
        clients: how many.
        settings: of the run.
        options: of `fedsim deploy init`.
    """

    def __init__(
        self, fedsim: Path, folder: Path, clients: int, settings: tuple[str, ...], options: tuple[str, ...] = ()
    ) -> None:
        self.fedsim, self.folder, self.followers = fedsim, folder, 0
        sets = [word for setting in settings for word in ("--set", setting)]
        self.must("init", folder, "--clients", str(clients), "--port", PORT, *options, *sets)
        self.must("up", folder)

    def must(self, *arguments: str | Path) -> None:
        subprocess.run([self.fedsim, "deploy", *arguments], check=True, stdout=subprocess.DEVNULL)

    def compose(self, *arguments: str) -> str:
        return docker("compose", "--env-file", str(self.folder / ".env"), *arguments)

    def follow(self, *more: str) -> "subprocess.Popen[bytes]":
        """Start a run as its user does, or resume one; what it prints goes to a file."""
        self.followers += 1
        with self.log(self.followers).open("wb") as log:
            command = [self.fedsim, "deploy", "run", self.folder, *more]
            return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def log(self, number: int) -> Path:
        return self.folder / f"follower-{number}.log"

    def run_folder(self) -> Path:
        return max((self.folder / "runs").iterdir(), key=lambda path: path.stat().st_mtime)

    def run_name(self) -> str:
        return self.run_folder().name

    def rounds(self) -> list[tuple[int, float]]:
        """Return replies and seconds of each finished round."""
        files = sorted((self.folder / "runs").glob("*/metrics.csv"), key=lambda path: path.stat().st_mtime)
        if not files:
            return []
        found: dict[int, dict[str, float]] = {}
        for line in files[-1].read_text().splitlines():
            if hit := re.fullmatch(r'(\d+),"?\w+"?,"?(accepted|round_s)"?,([\d.e+-]+)', line):
                found.setdefault(int(hit[1]), {})[hit[2]] = float(hit[3])
        done = [found[number] for number in sorted(found) if len(found[number]) == 2]
        return [(int(each["accepted"]), each["round_s"]) for each in done]

    def past(self, more: int, replies: int, limit_s: float = 300) -> None:
        """Wait until so many more rounds have so many replies."""
        before = len(self.rounds())
        counts = lambda: sum(got == replies for got, _ in self.rounds()[before:])  # noqa: E731
        wait(lambda: counts() >= more, limit_s, f"{more} rounds more of {replies} replies: {self.rounds()[-5:]}")

    def first(self, since: int, replies: int, limit_s: float) -> float:
        """Wait for a round of so many replies among those after the first `since`; returns its seconds."""
        wait(lambda: any(got == replies for got, _ in self.rounds()[since:]), limit_s, f"{replies} replies")
        return next(seconds for got, seconds in self.rounds()[since:] if got == replies)


def client(number: int) -> str:
    return f"{PROJECT}-client-{number + 1}"


def pid_of(container: str) -> int:
    return int(docker("inspect", "--format", "{{.State.Pid}}", container))


def sent_bytes(pid: int) -> int:
    """Return what a container's interface has sent, without the time that `docker exec` takes."""
    for line in Path(f"/proc/{pid}/net/dev").read_text().splitlines():
        if line.strip().startswith("eth0:"):
            return int(line.partition(":")[2].split()[8])
    raise AssertionError("the container has no interface eth0")


@contextmanager
def federation(
    fedsim: Path, folder: Path, clients: int, *settings: str, options: tuple[str, ...] = ()
) -> Iterator[Federation]:
    found = Federation(fedsim, folder, clients, settings, options)
    try:
        yield found
    except BaseException:
        print(found.compose("ps", "--all"), found.compose("logs", "--tail", "30"), sep="\n")
        for number in range(1, found.followers + 1):
            print(found.log(number).read_text(errors="replace")[-3000:])
        raise
    finally:
        found.must("down", folder)
