"""Sentences of the documentation and of public docstrings stay short, and code fits its column."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support import readability

ROOT = Path(__file__).parents[1]
GUIDES = [
    page
    for page in sorted((ROOT / "docs").rglob("*.md"))
    # lines of files as they are, and as they are printed
    if page.name != "openai-batch.md"
    # examples of docstrings, as wide as code
    and page.parent.name != "reference"
]


def test_a_sentence_is_found_in_prose_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A heading of five words\n\nOne two three. `Four` five\nsix.\n\n"
        "- An item.\n- **Another.** It is short.\n\n"
        "```python\nno = 1\n```\n\n    no code\n\n| no | table |\n| --- | --- |\n| two | words |\n",
        encoding="utf-8",
    )
    prose = readability.of_page(page)
    assert [sentence for _, sentence in prose.sentences] == [
        "One two three.",
        "`_` five six.",
        "An item.",
        "Another.",
        "It is short.",
    ]
    assert prose.lengths == [3, 3, 2, 1, 3]
    assert prose.long == 0


def test_the_sentences_of_the_documentation_are_short() -> None:
    prose = readability.joined(list(readability.pages(ROOT / "docs").values()))
    assert prose.mean <= 10.5
    assert prose.words <= 13_000
    assert prose.long <= 0.007, "cd tests && python -m support.readability --long 30"


def test_words_are_counted_with_tables_and_without_fenced_code_and_comments() -> None:
    page = "One *two*.\n\n| three | four |\n\n```python\nno\n```\n\n    five\n<!-- no\nno -->\n"
    assert readability.words_in(page) == 8


def test_the_documentation_stays_within_its_words() -> None:
    """35,000 in all, and 1,700 on a page."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
    pages += (ROOT / "docs").rglob("*.md")
    words = {
        page.relative_to(ROOT).as_posix(): readability.words_in(page.read_text(encoding="utf-8"))
        for page in pages
    }
    assert {page: count for page, count in words.items() if count > 1_700} == {}
    assert sum(words.values()) <= 35_000


def test_the_sentences_of_docstrings_do_not_grow() -> None:
    prose = readability.of_docstrings(ROOT / "pipegen")
    assert prose.mean <= 13.5
    assert prose.long <= 0.03, "cd tests && python -m support.readability --long 30"


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_code_on_a_page_fits_80_columns(page: Path) -> None:
    wide, fenced = [], False
    for line in page.read_text(encoding="utf-8").splitlines():
        if re.match(r" *```", line):
            fenced = not fenced
        elif (fenced or line.startswith("    ")) and len(line) > 80:
            wide.append(line)
    assert wide == []
