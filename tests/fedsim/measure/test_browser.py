"""The report in a real browser: no errors on its console, every figure drawn.

Needs chromium (Debian: ``apt-get install chromium``); without one the tests are skipped with that reason.
"""

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from fedsim.measure.report import Options, write_report

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
NO_PNG = Options(png=False)
BROWSER = next((found for name in NAMES if (found := shutil.which(name))), None)
pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="NO BROWSER: none of " + ", ".join(NAMES) + " is on PATH; apt-get install chromium"
)
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --disable-extensions --hide-scrollbars "
    "--window-size=1400,1000 --virtual-time-budget=20000 --enable-logging=stderr"
).split()


def dom(page: Path, profile: Path, *flags: str) -> tuple[str, str]:
    """Return the page's DOM after its scripts ran, and what its console said."""
    assert BROWSER is not None
    command = [BROWSER, *FLAGS, f"--user-data-dir={profile}", *flags, "--dump-dom", page.resolve().as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return done.stdout, "\n".join(console)


def drawn(source: str) -> dict[str, int]:
    """Return for each figure the number of marks in its plot area: line paths, bars, heat map images."""
    body = re.sub(r"<script.*?</script>", "", source, flags=re.S)
    places = re.split(r'<div class="plot[^"]*" data-figure="', body)[1:]
    marks = r'class="js-line"|<g class="point"|<g class="points"><path|<image [^>]*data:image|class="hm"'
    return {place.split('"', 1)[0]: len(re.findall(marks, place)) for place in places}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_figure_of_a_run_is_drawn(make_run: Callable[..., Path], tmp_path: Path, scheme: str) -> None:
    report = write_report([make_run(rounds=4, clients=8)], options=NO_PNG)
    flags = ["--blink-settings=preferredColorScheme=0"] if scheme == "dark" else []
    source, console = dom(report, tmp_path / "profile", *flags)
    assert console == ""
    assert 'data-drawn="true"' in source
    marks = drawn(source)
    assert len(marks) == 13 and all(marks.values()), marks
    assert ("rgb(78, 163, 221)" in source) == (scheme == "dark"), "the palette follows the theme"


def test_every_figure_of_a_comparison_is_drawn(make_run: Callable[..., Path], tmp_path: Path) -> None:
    nasty = "<img src=x onerror=console.error('escaped')> $x$"
    runs = [
        make_run("plain", rounds=3, clients=6),
        make_run(
            "bfv <b>&",
            rounds=3,
            clients=6,
            expansion=4,
            seed=2,
            drops=0.5,
            reasons=(nasty,),
            status="failed",
            reason=nasty,
        ),
    ]
    source, console = dom(write_report(runs, options=NO_PNG), tmp_path / "profile")
    assert console == ""
    marks = drawn(source)
    assert len(marks) == 17 and all(marks.values()), marks


def test_the_check_sees_errors_and_empty_figures(make_run: Callable[..., Path], tmp_path: Path) -> None:
    report = write_report([make_run(rounds=2, clients=3)], options=NO_PNG)
    source = report.read_text(encoding="utf-8")
    broken = tmp_path / "broken.html"
    broken.write_text(source.replace("drawAll();\n", "throw new Error('planted');\n"), encoding="utf-8")
    source, console = dom(broken, tmp_path / "profile")
    assert "planted" in console
    assert not any(drawn(source).values())
