"""The code blocks of README and docs, with what an HTML comment right before a block says about running it.

Comments::

    <!-- slow -->                 runs with `-m slow` alone
    <!-- small: OPTIONS -->       runs with OPTIONS appended; as it is printed with `-m slow`
    <!-- not run: REASON -->      is not run
    <!-- fails: CODE -->          must end with this exit code

A block of ``python -m experiments. ...`` without a comment is slow; one of the system's own programs, or of a server
that runs until it is stopped, is not run.

A block ```toml title="NAME" and ```python title="NAME" is written into the page's folder, where later blocks find it.
"""

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))]
LANGUAGES = ("console", "python", "toml", "text", "bash", "ini", "csv", "yaml")
_SERVES = ("helper serve", "deploy node", "deploy server", "deploy up")
_BLOCK = re.compile(r"((?:<!-- [^\n]*-->\n)*)```([^\n]*)\n(.*?)```", re.S)


@dataclass(frozen=True)
class Block:
    """One code block.

    Attributes:
        page: the page's path in the repository.
        line: of its first line.
        language: its kind.
        text: without the fences.
        title: file that it is written to, empty for none.
        slow, small, not_run, fails: see the module's docstring.
    """

    page: str
    line: int
    language: str
    text: str
    title: str = ""
    slow: bool = False
    small: str = ""
    not_run: str = ""
    fails: int = 0
    commands: list[str] = field(default_factory=list)


def blocks(page: str) -> list[Block]:
    """Return a page's blocks in their order."""
    return parse(page, (ROOT / page).read_text(encoding="utf-8"))


def parse(page: str, text: str) -> list[Block]:
    """Return the blocks of a text.

    Raises:
        ValueError: a comment of an unknown kind stands before a block, or one says nothing.
    """
    found = []
    for match in _BLOCK.finditer(text):
        comments, head, body = match.groups()
        language, _, rest = head.strip().partition(" ")
        marks = dict(_mark(line) for line in comments.splitlines())
        lines = commands(body) if language in ("console", "bash") else []
        title = re.search(r'title="([^"]+)"', rest)
        found.append(
            Block(
                page=page,
                line=text[: match.start(2)].count("\n") + 2,
                language=language,
                text=body,
                title=title.group(1) if title else "",
                slow="slow" in marks or ("small" not in marks and any(map(_is_experiment, lines))),
                small=marks.get("small", ""),
                not_run=marks.get("not run", _needs_the_system(lines)),
                fails=int(marks.get("fails", 0)),
                commands=lines,
            )
        )
    return found


def _needs_the_system(commands: list[str]) -> str:
    if any(f"fedsim {what}" in command for command in commands for what in _SERVES):
        return "serves until it is stopped, or needs what does; tests/deploy and tests/fedsim run these as processes"
    programs = {words(command)[0][0] for command in commands}
    found = sorted(programs & {"apt-get", "docker", "nsenter", "pip", "systemctl"})
    return f"{', '.join(found)}: changes the system, or needs rights or a network" if found else ""


def _is_experiment(command: str) -> bool:
    """Tell whether a command is one of those that measure for minutes or hours."""
    return " -m experiments." in f" {command}"


def _mark(comment: str) -> tuple[str, str]:
    name, _, value = comment.removeprefix("<!-- ").removesuffix(" -->").partition(": ")
    if name not in ("slow", "small", "not run", "fails", "reports"):
        raise ValueError(f"comment {comment!r} before a code block is of no known kind; see tests/docs_blocks.py")
    if name in ("small", "not run", "fails") and not value:
        raise ValueError(f"comment {comment!r} must say what, after a colon")
    return name, value


def commands(text: str) -> list[str]:
    """Return the lines that begin with ``$ ``, with lines that end in a backslash joined."""
    joined = text.replace("\\\n", " ")
    return [line[2:].strip() for line in joined.splitlines() if line.startswith("$ ")]


def words(command: str) -> tuple[list[str], str]:
    """Split a command into its words and the file that its output goes to, empty for none."""
    parts = shlex.split(command)
    if ">" in parts:
        at = parts.index(">")
        return parts[:at], parts[at + 1]
    return parts, ""


def expected(block: Block) -> str:
    """Return the output that a console block shows below its commands."""
    return "\n".join(line for line in block.text.splitlines() if not line.startswith(("$ ", "  ", "> ")))
