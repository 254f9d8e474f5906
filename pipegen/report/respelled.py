"""Other spellings of a text. Programs between model and reader make them: typographic quotes,
escapes of HTML and JSON, the wrong encoding.

>>> [*unspelled("It&#39;s a &lt;b&gt;")]
[('with HTML escapes', "It's a <b>")]
>>> [*unspelled("“It’s”")]
[('with typographic characters', '"It\\'s"')]
>>> [*unspelled("It's")]
[]
"""

from __future__ import annotations

import html
import json
import unicodedata
from collections.abc import Callable, Iterator

_TYPOGRAPHIC = str.maketrans(
    {
        **dict.fromkeys("“”„‟«»〝〞＂″", '"'),
        **dict.fromkeys("‘’‚‛‹›′＇ʼ`´", "'"),
        **dict.fromkeys("‐‑‒–—―−", "-"),
        **dict.fromkeys("\u00a0\u2002\u2003\u2007\u2009\u202f", " "),
        **dict.fromkeys("\u00ad\u200b\u200c\u200d\u2060\ufeff", ""),
        "…": "...",
    }
)


def _typographic(text: str) -> str:
    return text.translate(_TYPOGRAPHIC)


def _html(text: str) -> str:
    once = html.unescape(text)
    return html.unescape(once)


def _json(text: str) -> str:
    """Without the escapes of JSON; the text itself where it has none that can be read."""
    if "\\" not in text:
        return text
    try:
        read = json.loads(f'"{text}"', strict=False)
    except ValueError:
        return text
    return read if isinstance(read, str) else text


def _encoding(text: str) -> str:
    """UTF-8 that was read as another encoding, read rightly."""
    for encoding in ("cp1252", "latin-1"):
        try:
            return text.encode(encoding).decode("utf-8")
        except UnicodeError:
            continue
    return text


_WAYS: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("with HTML escapes", _html),
    ("with typographic characters", _typographic),
    ("with JSON escapes", _json),
    ("in the wrong encoding", _encoding),
    ("in composed characters", lambda text: unicodedata.normalize("NFD", text)),
    ("in decomposed characters", lambda text: unicodedata.normalize("NFC", text)),
    ("with typographic characters and HTML escapes", lambda text: _typographic(_html(text))),
)


def unspelled(text: str) -> Iterator[tuple[str, str]]:
    """The texts that this one may have been, each once, with how it is spelled now."""
    seen = {text}
    for words, read in _WAYS:
        other = read(text)
        if other not in seen:
            seen.add(other)
            yield words, other


def is_respelled(text: str, expected: str) -> bool:
    """Whether a text is the expected one in another spelling, whose characters mean the same.

    >>> is_respelled("Tom &amp; “Jerry”", 'Tom & "Jerry"'), is_respelled("Tom", "Jerry")
    (True, False)
    """
    if text == expected:
        return False
    ours = {expected, _typographic(expected), unicodedata.normalize("NFC", expected)}
    return any(
        other in ours or _typographic(other) in ours
        for other in (text, *(other for _, other in unspelled(text)))
    )
