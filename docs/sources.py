"""Lead the links to source files to the repository: an MkDocs hook, used by .mkdocs.yml. Where the
address of the repository is not known (`repo_url`), such a link is the name of the file alone. On a
page in the repository itself the same links lead to the files.
"""

from __future__ import annotations

import re
from typing import Any

LINK = re.compile(
    r"\[([^]]*)\]\((?:\.\./)*(pipegen/[\w/]+\.py|examples(?:/[\w.]+)?)\)"
)


def on_page_markdown(markdown: str, *, config: Any, **_: Any) -> str:
    """Called by MkDocs for each page."""
    at = (config["repo_url"] or "").rstrip("/")

    def led(found: re.Match[str]) -> str:
        name, path = found.groups()
        if path.startswith("examples"):
            path = f"docs/{path}"
        return f"[{name}]({at}/blob/HEAD/{path})" if at else name

    return LINK.sub(led, markdown)
