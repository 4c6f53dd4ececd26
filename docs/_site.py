"""What the site adds to the pages: the files of the repository that are pages too, and links that lead out of docs/."""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]

#: Page of the site -> file of the repository.
FROM_REPOSITORY = {
    "index.md": "README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "benchmarks.md": "experiments/bench/README.md",
}
PAGES = {source: page for page, source in FROM_REPOSITORY.items()}
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")
_ROLE = re.compile(r":(?:py:)?(?:class|mod|func|meth|data|attr):<code>~?\.?([^<]*)</code>")


def on_files(files: Files, config: Any) -> Files:
    """Add the repository's own pages, the settings' template and the pictures of results."""
    for page, source in FROM_REPOSITORY.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    files.append(File.generated(config, "reference/settings.md", content=settings_page()))
    for picture in sorted((ROOT / "experiments" / "results").rglob("*.png")):
        name = "results/" + picture.relative_to(ROOT / "experiments" / "results").as_posix()
        files.append(File.generated(config, name, abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn each link that is right in the repository into one that is right on the site."""
    at = FROM_REPOSITORY.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    return _LINK.sub(lambda match: _moved(match, at, page.file.src_uri), markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Show the roles of docstrings as plain code."""
    return _ROLE.sub(r"<code>\1</code>", html)


def _moved(match: re.Match[str], at: str, here: str) -> str:
    bang, text, target, anchor = match.group(1), match.group(2), match.group(3), match.group(4) or ""
    source = posixpath.normpath(posixpath.join(posixpath.dirname(at), target))
    if source.startswith("docs/"):
        place = source.removeprefix("docs/")
    elif source.startswith("experiments/results/"):
        place = "results/" + source.removeprefix("experiments/results/")
    elif source in PAGES:
        place = PAGES[source]
    else:
        # A file of the repository that is no page: its name is enough.
        return text
    if not bang and not place.endswith((".md", ".png")):
        return text
    return f"{bang}[{text}]({posixpath.relpath(place, posixpath.dirname(here) or '.')}{anchor})"


def settings_page() -> str:
    """Return the page of all settings, from the settings themselves."""
    from fedsim.config import schema

    lines = [
        "# Settings",
        "",
        "All keys, as `fedsim config --template` prints them: what they do, which values they take, and their default.",
        "",
    ]
    last = ""
    for key in schema():
        section = key.key.split(".")[0] + (f" = {key.of}" if key.of else "")
        if section != last:
            title = key.key.split(".")[0] if "." in key.key else "Top level"
            lines += [
                "",
                f"## {title}" + (f": `{key.of}`" if key.of else ""),
                "",
                "| key | values | default | |",
                "|-|-|-|-|",
            ]
            last = section
        default = "not set" if key.default is None else f"`{key.default}`"
        cells = (f"`{key.key}`", key.allowed, default, key.description)
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("<", "&lt;") for cell in cells) + " |")
    return "\n".join(lines) + "\n"
