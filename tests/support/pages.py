"""The programs of a page that shows one before and one after."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["before_and_after"]

DOCS = Path(__file__).parents[2] / "docs"


def before_and_after(page: str) -> tuple[str, str]:
    """The program below `## Before` and the program below `## After` of a page of docs/migrate/."""
    text = (DOCS / "migrate" / page).read_text(encoding="utf-8")
    before, after = (
        re.search(rf"^## {title}\n+```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        for title in ("Before", "After")
    )
    assert before is not None
    assert after is not None
    return before[1], after[1]
