"""Show the source files that pages link to: an MkDocs hook, used by .mkdocs.yml. In the repository
the same links lead to the files themselves.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"\]\((?:\.\./)+(pipegen/[\w/]+\.py)\)")


def on_files(files: Files, config: Any) -> Files:
    """Add a page for each source file that a page links to."""
    linked = {
        path for file in files.documentation_pages() for path in LINK.findall(file.content_string)
    }
    for path in sorted(linked):
        text = (
            "---\nsearch:\n  exclude: true\n---\n#"
            f" {path}\n\n````python\n{(ROOT / path).read_text(encoding='utf-8')}````\n"
        )
        files.append(
            File.generated(
                config, f"source/{path}.md", content=text, inclusion=InclusionLevel.NOT_IN_NAV
            )
        )
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Lead the links of a page to those pages."""
    up = "../" * page.file.src_uri.count("/")
    return LINK.sub(lambda found: f"]({up}source/{found[1]}.md)", markdown)
