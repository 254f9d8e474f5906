"""The example of README.md, run as a reader runs it: `python -P -m support.readme`. What it prints
must be what README shows below it.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import re
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"
EXAMPLE = re.compile(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def example(page: str) -> tuple[str, str]:
    """The code of a page's one example, and what the page says that it prints."""
    ((code, shown),) = EXAMPLE.findall(page)
    return code, shown


def difference(page: str) -> str:
    """Run a page's example; the difference to what the page shows, or nothing."""
    code, shown = example(page)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})
    return "\n".join(
        difflib.unified_diff(
            shown.splitlines(), printed.getvalue().splitlines(), "shown", "printed", lineterm=""
        )
    )


if __name__ == "__main__":
    sys.exit(difference(README.read_text(encoding="utf-8")) or 0)
