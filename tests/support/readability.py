"""How long the sentences of the documentation and of public docstrings are.

    cd tests && python -m support.readability            # the figures
    cd tests && python -m support.readability --long 30  # the longest sentences, with their places

A sentence is what ends with a full stop, a question mark or an exclamation mark in a paragraph or
in an item of a list. Code, tables, headings and drawings have no sentences. The words of tables are
counted apart.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LONG = 25  # words
FENCED = re.compile(r"^ *(`{3,}).*?^ *\1 *$", re.DOTALL | re.MULTILINE)
DRAWN = re.compile(r"<svg.*?</svg>|<!--.*?-->|<[^>\s][^>]*>", re.DOTALL)
LINK = re.compile(r"!?\[([^]]*)\]\([^)]*\)(?:\{[^}]*\})?")
CODE = re.compile(r"(`+).+?\1")
END = re.compile(r"(?<=[.!?])[\"')*_]*\s+(?=[\"'(*_`]*[A-Z0-9`])")
ABBREVIATED = re.compile(r"\b(e\.g|i\.e|etc|vs|cf)\.")
ARGUMENT = re.compile(r"\n(?=[a-z]\w*(?:, \w+)*: )")  # in a docstring
ITEM = re.compile(r"^ *(?:[-*+]|\d+\.) +")


@dataclass(frozen=True, slots=True)
class Prose:
    """The sentences of some texts, each with its place, and the words of their tables."""

    sentences: tuple[tuple[str, str], ...]
    table_words: int = 0

    @property
    def lengths(self) -> list[int]:
        return [len(sentence.split()) for _, sentence in self.sentences]

    @property
    def words(self) -> int:
        return sum(self.lengths)

    @property
    def mean(self) -> float:
        return self.words / max(1, len(self.sentences))

    @property
    def long(self) -> float:
        """The share of sentences of more than 25 words."""
        return sum(length > LONG for length in self.lengths) / max(1, len(self.sentences))


def sentences_of(text: str) -> list[str]:
    """The sentences of a paragraph. A piece of code counts as one word.

    >>> sentences_of("Write `a. B` here. `c` is short, e.g. Two.")
    ['Write `_` here.', '`_` is short, eg Two.']
    """
    plain = CODE.sub("`_`", LINK.sub(r"\1", text)).replace("**", "")
    plain = ABBREVIATED.sub(lambda found: found[1].replace(".", ""), plain)
    return [
        sentence for sentence in END.split(" ".join(plain.split())) if re.search(r"\w", sentence)
    ]


def paragraphs(markdown: str) -> Iterator[str]:
    """The paragraphs and items of lists, each as one text."""
    held: list[str] = []
    for line in [*DRAWN.sub("", FENCED.sub("\n", markdown)).splitlines(), ""]:
        starts = ITEM.match(line)
        apart = not line.strip() or line.lstrip().startswith(("#", "|", ":::", "---"))
        code = not held and line.startswith("    ") and not starts
        if (starts or apart) and held:
            yield " ".join(held)
            held = []
        if not apart and not code:
            held.append(ITEM.sub("", line).strip())


ENTRY = re.compile(r"^<!-- reference: .*?<!-- end of reference -->", re.DOTALL | re.MULTILINE)
"""What is written from docstrings, which are counted apart."""


def words_in(markdown: str) -> int:
    """All words that a reader sees on a page, tables and marks included, without fenced code.

    >>> words_in("A **word**, <!-- not this --> and | a cell | .")
    8
    """
    return len(re.sub(r"<!--.*?-->", "", FENCED.sub("", markdown), flags=re.DOTALL).split())


def of_page(path: Path, name: str = "") -> Prose:
    """The prose of one page."""
    text = ENTRY.sub("", path.read_text(encoding="utf-8"))
    rows = [line for line in FENCED.sub("", text).splitlines() if line.lstrip().startswith("|")]
    cells = sum(len(LINK.sub(r"\1", row).replace("|", " ").split()) for row in rows)
    found = [
        (name or path.name, sentence)
        for paragraph in paragraphs(text)
        for sentence in sentences_of(paragraph)
    ]
    return Prose(tuple(found), cells)


def of_docstrings(package: Path) -> Prose:
    """The prose of the docstrings of a package: of what has no private name, without doctests."""
    found: list[tuple[str, str]] = []
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(
                node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
            ):
                continue
            name = getattr(node, "name", path.stem)
            if name.startswith("_") and name != "__init__":
                continue
            text = re.sub(
                r"^ *>>> .*?(?=^\s*$|\Z)",
                "",
                ast.get_docstring(node) or "",
                flags=re.DOTALL | re.MULTILINE,
            )
            text = ARGUMENT.sub(r"\n\n", text)
            place = f"{path.relative_to(package.parent)}:{name}"
            found += [
                (place, sentence)
                for paragraph in paragraphs(text)
                for sentence in sentences_of(paragraph)
            ]
    return Prose(tuple(found))


def joined(parts: list[Prose]) -> Prose:
    return Prose(
        tuple(sentence for part in parts for sentence in part.sentences),
        sum(part.table_words for part in parts),
    )


def pages(docs: Path) -> dict[str, Prose]:
    """The prose of every page, by its path."""
    return {
        path.relative_to(docs).as_posix(): of_page(path, path.relative_to(docs).as_posix())
        for path in sorted(docs.rglob("*.md"))
    }


def shown(name: str, prose: Prose) -> str:
    return (
        f"{name:34} {prose.words:6} words {prose.table_words:5} in tables"
        f" {len(prose.sentences):5} sentences, mean {prose.mean:4.1f},"
        f" over {LONG} words: {prose.long:5.1%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--docs", type=Path, default=ROOT / "docs")
    parser.add_argument("--package", type=Path, default=ROOT / "pipegen")
    parser.add_argument("--long", type=int, default=0, help="show that many of the longest")
    arguments = parser.parse_args()
    by_page = pages(arguments.docs)
    for name, prose in by_page.items():
        print(shown(name, prose))
    of_docs, of_code = joined(list(by_page.values())), of_docstrings(arguments.package)
    print(shown(f"{len(by_page)} pages", of_docs))
    print(shown("docstrings", of_code))
    every = sorted((*of_docs.sentences, *of_code.sentences), key=lambda one: -len(one[1].split()))
    for place, sentence in every[: arguments.long]:
        print(f"{len(sentence.split()):4} {place}: {sentence}")


if __name__ == "__main__":
    main()
