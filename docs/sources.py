"""What the site shows otherwise than a page in the repository: an MkDocs hook, used by .mkdocs.yml.

Links to source files lead to the repository; where its address is not known (`repo_url`), such a
link is the name of the file alone. Entries of the reference that a page has in a comment are shown.
"""

from __future__ import annotations

import re
from typing import Any

LINK = re.compile(
    r"\[([^]]*)\]\((?:\.\./)*(pipegen/[\w/]+\.py|examples(?:/[\w.]+)?)\)"
)
SITE_ALONE = re.compile(
    r"^<!--\n(::: pipegen.*?)-->\n", re.MULTILINE | re.DOTALL
)


def on_page_markdown(markdown: str, *, config: Any, **_: Any) -> str:
    """Called by MkDocs for each page."""
    at = (config["repo_url"] or "").rstrip("/")

    def led(found: re.Match[str]) -> str:
        name, path = found.groups()
        if path.startswith("examples"):
            path = f"docs/{path}"
        return f"[{name}]({at}/blob/HEAD/{path})" if at else name

    return LINK.sub(led, SITE_ALONE.sub(r"\1", markdown))
