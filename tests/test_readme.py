"""The README's commands leave what the README says; that they run is tests/test_docs.py's affair."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_links_lead_to_files() -> None:
    targets = re.findall(r"\]\((?!\w+:)([^)#]+)", README)
    assert len(targets) > 10
    assert [target for target in targets if not (ROOT / target).exists()] == []
