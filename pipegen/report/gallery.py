"""Results as a page to look at: one HTML file that holds everything, or a folder of pages.

Whatever comes from a request, a model or an error is escaped, and the page's policy lets no script
run but its own, which it names by digest.

>>> marked("a red cat", "a blue cat")
('a <mark>red</mark> cat', 'a <mark>blue</mark> cat')
>>> marked("<b>", "<i>")[0]
'&lt;<mark>b</mark>&gt;'
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from string import Template
from typing import NamedTuple

from pipegen import __version__
from pipegen.records.answer_parts import common_prefix
from pipegen.report.boxes import Box

PAGE_ROWS = 2000
"""The most rows of one page."""
_PAGE = Path(__file__).with_name("gallery.html")
_SCRIPT = Path(__file__).with_name("gallery.js")
MISSING = "not in this file"
"""The ending of what the other file does not have."""
_LINE = 100
"""Characters of a prompt that are shown before it is unfolded."""
_SIDES = (240, 320, 480, 1200)
"""The longer side of an image, in pixels of the page: at least, at most, at most with boxes, and
where it was clicked."""
_LABEL = 18
"""The height of a label, in pixels: above its box where there is room."""
_LONGEST = 200_000
"""Characters of one text that are shown."""
_WORDS = 4000
"""The most words that are compared one by one; of longer texts only a common beginning and end are
found.
"""


class Figure(NamedTuple):
    """An image of a request: a data URL made here, or why there is none; and the boxes of the
    answer.
    """

    name: str
    url: str | None
    boxes: tuple[Box, ...] = ()
    size: tuple[int, int] = (1, 1)
    """Width and height, of which the longer side counts."""


class Exchange(NamedTuple):
    """A turn of a conversation before its last answer."""

    text: str
    """What the model answered."""
    calls: str
    """The tools that it called, one on each line."""
    then: str
    """What was asked next: a user's words, or what tools answered."""


class Folded(NamedTuple):
    """A text under its name, which a click shows or hides."""

    name: str
    pieces: tuple[tuple[str, bool], ...]
    """The text in pieces: each, and whether it is a control token."""
    is_open: bool = False


class Entry(NamedTuple):
    """One result, as it is shown."""

    id: str
    kind: str
    """How it finished, or the type of its error."""
    ok: bool
    texts: tuple[str, ...] = ()
    """The answer; of several samples each."""
    error: tuple[str, str] | None = None
    """Message and hint."""
    folded: tuple[Folded, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    turns: tuple[Exchange, ...] = ()
    """Of a conversation, the turns before the last."""

    @property
    def outcome(self) -> tuple[str, ...] | str:
        """What is compared with the same request's in another file: the texts, or the type of the
        error.
        """
        return (*(turn.text for turn in self.turns), *self.texts) if self.ok else self.kind


class Overview(NamedTuple):
    """Counts over all results of a file."""

    name: str
    kinds: Mapping[str, int]
    """How many ended in each way, or failed with each type of error."""
    errors: frozenset[str]
    """Those of them that are errors."""
    other: Overview | None = None
    """The same of the other file, of a comparison: of its results for the requests of this one."""
    differing: int = 0


def counted(count: int, word: str) -> str:
    """A number of things.

    >>> counted(1, "result"), counted(2000, "result")
    ('1 result', '2,000 results')
    """
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def printable(text: str) -> str:
    r"""The text for a terminal or a page: control characters, except line feed and tab, and those
    that turn the text's direction become visible.

    >>> printable("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    return re.sub(
        r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]",
        lambda match: match[0].encode("unicode_escape").decode(),
        text,
    )


def safe(text: str) -> str:
    r"""Foreign text for a page: printable, and escaped.

    >>> safe("<script>\x1b[2J\u202e"), safe("\"a\" & 'b'")
    ('&lt;script&gt;\\x1b[2J\\u202e', '&quot;a&quot; &amp; &#x27;b&#x27;')
    """
    shown = text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ... ({len(text)} characters)"
    return html.escape(printable(shown))


def opening(
    overview: Overview,
    page: int,
    names: Sequence[str],
    *,
    more: str = "",
    in_columns: bool = False,
) -> str:
    """The beginning of a page, up to its first card. `names` are the files of all pages, and `more`
    is added to the counts.
    """
    script = _SCRIPT.read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    other = overview.other
    chips = _chips(overview, "kind", named=other is not None)
    links = [
        f'<a href="{safe(name)}"{" aria-current=page" if index == page else ""}>{index + 1}</a>'
        for index, name in enumerate(names)
    ]
    compared = (
        '<label>text <select id="same"><option value="">all</option><option'
        ' value="0">differs</option><option value="1">equal</option></select></label>'
    )
    head, _, _ = _PAGE.read_text(encoding="utf-8").partition("$cards")
    return Template(head).substitute(
        digest=digest,
        title=safe(overview.name if other is None else f"{overview.name} and {other.name}"),
        facts=", ".join(
            (
                counted(sum(overview.kinds.values()), "result"),
                counted(sum(overview.kinds[kind] for kind in overview.errors), "error"),
            )
        )
        + (
            f"; {overview.differing:,} differ{'s' if overview.differing == 1 else ''} from"
            f" {safe(other.name)}"
            if other is not None
            else ""
        )
        + safe(more),
        layout="columns" if in_columns else "",
        chips=chips if other is None else chips + _chips(other, "other", named=True),
        compared=compared if other is not None else "",
        pages=f'<nav aria-label="pages">page {" ".join(links)}</nav>' if len(names) > 1 else "",
    )


def ending(command: str = "pipegen view", note: str = "") -> str:
    """The end of a page: the command that made it, and a note."""
    _, _, tail = _PAGE.read_text(encoding="utf-8").partition("$cards")
    return Template(tail).substitute(
        version=safe(__version__),
        command=safe(command),
        note=safe(note),
        script=_SCRIPT.read_text(encoding="utf-8"),
    )


def _chips(side: Overview, of: str, *, named: bool) -> str:
    """The endings of a file as filters. `of` is what cards call them."""
    name = f"<b>{safe(side.name)}</b> " if named else ""
    chips = [_chip(of, "", "all", sum(side.kinds.values()))] + [
        _chip(of, kind, kind, count, bad=kind in side.errors)
        for kind, count in Counter(dict(side.kinds)).most_common()
    ]
    return f'<div class="chips">{name}{"".join(chips)}</div>'


def _chip(of: str, kind: str, name: str, count: int, *, bad: bool = False) -> str:
    pressed = "false" if kind else "true"
    return (
        f'<button type="button" data-of="{of}" data-kind="{safe(kind)}"'
        f' aria-pressed="{pressed}"{" class=bad" if bad else ""}>{safe(name)}'
        f" <b>{count:,}</b></button>"
    )


def card(
    entry: Entry,
    prompt: str,
    figures: Sequence[Figure],
    metadata: Mapping[str, object] | None = None,
    other: Entry | None = None,
    *,
    compared: tuple[str, str] | None = None,
    note: str = "",
) -> str:
    """One result, with a note under its id; where two files are compared, which have these names,
    beside that of the other.
    """
    sides = (
        [_side(entry, other)]
        if compared is None
        else [_side(entry, other, compared[0]), _side(other, entry, compared[1])]
    )
    same = compared is not None and other is not None and entry.outcome == other.outcome
    images = "".join(map(_figure, figures))
    images = f'<div class="images">{images}</div>' if images else ""
    about = f'<p class="note">{safe(note)}</p>' if note else ""
    facts = [(str(name), str(value)) for name, value in (metadata or {}).items()]
    return (
        f'<article data-id="{safe(entry.id)}" data-kind="{safe(entry.kind)}"'
        f' data-other="{safe(MISSING if other is None else other.kind)}"'
        f' data-same="{int(same)}"><h2>{safe(entry.id)}</h2>{about}{images}{_prompt_of(prompt)}'
        f'<div class="sides">{"".join(sides)}</div>{_facts(facts)}</article>\n'
    )


def _prompt_of(prompt: str) -> str:
    """The prompt: one short line, or folded behind its beginning."""
    line = " ".join(prompt.split())
    if line == prompt.strip() and len(line) <= _LINE:
        return f'<pre class="prompt">{safe(prompt)}</pre>' if line else ""
    return (
        f'<details class="asked"><summary>prompt <span>{safe(line[:_LINE])} ...</span></summary>'
        f'<pre class="prompt">{safe(prompt)}</pre></details>'
    )


def _side(entry: Entry | None, other: Entry | None, name: str = "") -> str:
    head = f"<h3>{safe(name)}</h3>" if name else ""
    if entry is None:
        return f'<section class="missing">{head}{MISSING}</section>'
    if not entry.ok:
        message, hint = entry.error or ("", "")
        return (
            f'<section class="error">{head}<b'
            f' class="kind">{safe(entry.kind)}</b><p>{safe(message)}</p><p'
            f' class="hint">{safe(hint)}</p></section>'
        )
    texts = list(entry.texts)
    against = list(other.texts) if other is not None and other.ok else []
    shown = [
        marked(text, against[index])[0] if index < len(against) else safe(text)
        for index, text in enumerate(texts)
    ]
    answers = "".join(map(_exchange, entry.turns))
    answers += "".join(f'<pre class="text">{text}</pre>' for text in shown)
    answers += "".join(map(_folded, entry.folded))
    return f"<section>{head}{answers}{_facts((('finish', entry.kind), *entry.facts))}</section>"


def _folded(folded: Folded) -> str:
    text = "".join(
        f'<span class="token">{safe(piece)}</span>' if is_control else safe(piece)
        for piece, is_control in folded.pieces
    )
    return (
        f"<details{' open' if folded.is_open else ''}><summary>{safe(folded.name)}</summary>"
        f'<pre class="raw">{text}</pre></details>'
    )


def _exchange(turn: Exchange) -> str:
    calls = _facts((("tool calls", turn.calls),)) if turn.calls else ""
    then = f'<pre class="prompt">{safe(turn.then)}</pre>'
    return f'<pre class="text">{safe(turn.text)}</pre>{calls}{then}'


def _facts(facts: Sequence[tuple[str, str]]) -> str:
    rows = "".join(
        f"<div><dt>{safe(name)}</dt><dd>{safe(value[:2000])}</dd></div>" for name, value in facts
    )
    return f"<dl>{rows}</dl>" if rows else ""


def _figure(figure: Figure) -> str:
    if figure.url is None:
        return f'<figure class="broken"><figcaption>{safe(figure.name)}</figcaption></figure>'
    width, height = figure.size
    longer = max(width, height)
    seen = min(max(longer, _SIDES[0]), _SIDES[2 if figure.boxes else 1])
    down = height * seen / longer / 100
    boxes = "".join(
        f'<span class="box{"" if box.top * down > _LABEL else " high"}"'
        f' style="left:{box.left:.2f}%;top:{box.top:.2f}%;'
        f'width:{box.width:.2f}%;height:{box.height:.2f}%"'
        f' title="{safe(box.label)}"><span>{_label(index, box, len(figure.boxes))}</span></span>'
        for index, box in enumerate(figure.boxes, 1)
    )
    labels = "".join(f"<li>{safe(box.label)}</li>" for box in figure.boxes)
    image = (
        f'<img loading="lazy" width="{width}" height="{height}" alt="{safe(figure.name)}"'
        f' src="{html.escape(figure.url)}">'
    )
    sides = f"--small:{width * seen / longer:.0f}px;--large:{width * _SIDES[3] / longer:.0f}px"
    return (
        f'<figure style="{sides}"><button type="button" title="larger, or smaller"'
        f' class="frame{" coarse" if longer < _SIDES[0] else ""}">{image}{boxes}</button>'
        f"<figcaption>{safe(figure.name)}{f'<ol>{labels}</ol>' if len(figure.boxes) > 1 else ''}"
        "</figcaption></figure>"
    )


def _label(index: int, box: Box, boxes: int) -> str:
    return safe(box.label) if boxes == 1 else f"{index} {safe(box.label)}"


def marked(first_text: str, second_text: str) -> tuple[str, str]:
    """Two texts for a page, with the words marked that differ."""
    left, right = (re.findall(r"\s+|\w+|[^\w\s]", text) for text in (first_text, second_text))
    start = common_prefix(left, right)
    end = common_prefix(left[start:][::-1], right[start:][::-1])
    pieces = (left[start : len(left) - end], right[start : len(right) - end])
    codes = (
        SequenceMatcher(None, *pieces, autojunk=False).get_opcodes()
        if max(map(len, pieces)) <= _WORDS
        else [("replace", 0, None, 0, None)]
    )
    middle = [
        (tag != "equal", "".join(pieces[0][a:b]), "".join(pieces[1][c:d]))
        for tag, a, b, c, d in codes
    ]
    pairs = [
        (False, "".join(left[:start]), "".join(left[:start])),
        *middle,
        (False, "".join(left[len(left) - end :]), "".join(left[len(left) - end :])),
    ]
    return "".join(_mark(differs, text) for differs, text, _ in pairs), "".join(
        _mark(differs, text) for differs, _, text in pairs
    )


def _mark(differs: bool, text: str) -> str:
    return "" if not text else f"<mark>{safe(text)}</mark>" if differs else safe(text)
