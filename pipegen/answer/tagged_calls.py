r"""The form of a forced call whose arguments are tagged values, as the chat template writes them.

One regular expression has the tags and the values: parameters stand in the order of the schema, and
those that are not required may be left out. A text is anything up to the tag behind it. Other
values are what the template writes for those that the schema allows. A list or an object is JSON of
its schema, generated in a call of its own.

>>> text_until("</a>")
'(?:[^<]|<(?:(?:/(?:a)?)?<)*(?:[^/<]|/(?:[^a<]|a[^><])))*<(?:(?:/(?:a)?)?<)*/a>'
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from returns.result import Failure, Success

from pipegen.answer.json_formats import PATTERNS
from pipegen.answer.number_regex import either, numbers
from pipegen.answer.regex_check import ascii_regex
from pipegen.answer.tool_calls import tagged_value
from pipegen.core.errors import TemplateFailed
from pipegen.core.slots import Slot
from pipegen.template.call_syntax import ARGUMENTS, NAME, TOOLS, Syntax, Writer, common_beginning
from pipegen.template.probe import assistant, call

__all__ = ["JsonValue", "TaggedForm", "Tags", "tagged_form", "tags_of", "text_until"]

_NOTES = frozenset(
    [
        "title",
        "description",
        "default",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
        "$comment",
        "$id",
        "$schema",
        "$defs",
        "definitions",
    ]
)
"""Keywords that leave no value out."""
_BESIDE = frozenset(
    [
        "oneOf",
        "not",
        "if",
        "dependentSchemas",
        "dependentRequired",
        "dependencies",
        "minProperties",
        "maxProperties",
        "propertyNames",
        "patternProperties",
    ]
)
"""Keywords that say more of a value than one type does."""
_MANY = ("$ref", "allOf", "anyOf")
"""Keywords whose schemas say what a value is."""
_JSON = frozenset({"array", "object"})
_DEEPEST = 32
"""So many references within each other are followed."""


class Tags(NamedTuple):
    """What the template writes around tagged values: `begins`, for each of them `opens`, its key,
    `middle`, the value and `closes`, and then `ends`.
    """

    begins: str
    opens: str
    middle: str
    closes: str
    ends: str


class JsonValue(NamedTuple):
    """A parameter whose value is JSON."""

    opens: str
    """The text before it."""
    schema: str
    then: str
    """The regular expression of what follows the tag behind it."""


class TaggedForm(NamedTuple):
    """The arguments of one tool."""

    regex: str
    """Up to their end, or to a value that is JSON."""
    values: tuple[JsonValue, ...]


def tags_of(syntax: Syntax) -> Tags | None:
    """The tags of a syntax; None where a value is closed otherwise before another one than at the
    end, or is not closed.
    """
    if syntax.tags is None:
        return None
    first, middle, following = syntax.tags
    found = []
    for size in range(1, len(common_beginning(following, syntax.tail)) + 1):
        closes, opens, ends = following[:size], following[size:], syntax.tail[size:]
        begins = first.removesuffix(opens)
        if opens and first.endswith(opens) and begins + ends == syntax.empty_tail:
            found.append(Tags(begins, opens, middle, closes, ends.removesuffix(syntax.end)))
    # no tag and no line is cut into two
    return max(found, key=lambda tags: (tags.closes[-1] in ">\n", len(tags.closes)), default=None)


@functools.lru_cache(maxsize=256)
def tagged_form(schema: str, tags: Tags, ends: str, writer: Writer) -> Slot[TaggedForm]:
    """The arguments that a tool's schema, in JSON, allows, up to the text `ends`; `TemplateFailed`
    names the parameter that is not written so.
    """
    try:
        return Success(_Form(json.loads(schema), tags, writer).arguments(ends))
    except _UnwrittenError as refusal:
        return Failure(TemplateFailed(str(refusal)))


class _UnwrittenError(ValueError):
    """Something in a schema that is not written as tagged values."""


class _Form:
    """The form of one tool's arguments."""

    def __init__(self, schema: Any, tags: Tags, writer: Writer) -> None:
        self.root = _mapping(schema)
        self.shared = {key: self.root[key] for key in ("$defs", "definitions") if key in self.root}
        self.tags, self.writer = tags, writer

    def arguments(self, ends: str) -> TaggedForm:
        beside = next((key for key in self.root if key in _BESIDE or key in _MANY), None)
        if beside is not None:
            raise _UnwrittenError(f"its schema has {beside!r} beside its properties")
        required = self.root.get("required") or ()
        entries = {**_mapping(self.root.get("properties", {}))}
        for key in required:
            entries.setdefault(key, {})
        rest, values = _plain(ends), []
        for key, entry in reversed(entries.items()):
            opens = f"{self.tags.opens}{key}{self.tags.middle}"
            begins = _plain(opens)
            try:
                value = self._value(key, entry)
            except _UnwrittenError as refusal:
                raise _UnwrittenError(f"its parameter {key!r:.80}: {refusal}") from None
            if value is None:
                schema = json.dumps({**self.shared, **entry}, ensure_ascii=False)
                values.append(JsonValue(opens, schema, rest))
                rest = begins if key in required else f"(?:{begins}|{rest})"
            else:
                rest = (
                    f"{begins}{value}{rest}" if key in required else f"(?:{begins}{value})?{rest}"
                )
        return TaggedForm(rest, tuple(values))

    def _value(self, key: str, entry: Any) -> str | None:
        """The regular expression of a value and of what closes it; None where it is JSON."""
        if self.tags.middle in key + self.tags.middle[:-1]:
            raise _UnwrittenError(f"its name has {self.tags.middle!r}, which ends names")
        leaves = [*self._leaves(entry, _DEEPEST)]
        kinds = {str(leaf.get("type")) for leaf in leaves}
        if kinds.isdisjoint(_JSON):
            return either("|".join(map(self._leaf, leaves)))
        if not kinds <= {*_JSON, "boolean", "null"}:
            raise _UnwrittenError("it is a list or an object, or another value")
        if not re.search(r"[\0-\x1f]", self.tags.closes):
            raise _UnwrittenError(f"its JSON may hold {self.tags.closes!r}, which ends values")
        return None

    def _leaves(self, entry: Any, depth: int) -> Iterator[Mapping[str, Any]]:
        """The alternatives of a schema, each with one type, or with all values that it allows."""
        entry = {} if entry is True else _mapping(entry)
        if "enum" in entry or "const" in entry or entry.get("type") in ("array", "object"):
            yield entry
            return
        given = [key for key in _MANY if key in entry]
        own = {key: inner for key, inner in entry.items() if key not in given}
        if given:
            for part in self._parts(given[0], entry[given[0]]):
                if not depth or len(given) > 1 or not _NOTES.issuperset(own):
                    raise _UnwrittenError(f"its schema has {given[0]!r} beside other keywords")
                yield from self._leaves(part, depth - 1)
            return
        beside = next((key for key in entry if key in _BESIDE), None)
        kinds = entry.get("type", "string" if _NOTES.issuperset(entry) else None)
        if beside is not None or kinds is None:
            raise _UnwrittenError(f"its schema has {beside!r}" if beside else "it has no type")
        for kind in kinds if isinstance(kinds, list) else [kinds]:
            yield {**entry, "type": kind}

    def _parts(self, key: str, inner: Any) -> Sequence[Any]:
        """The schemas of which one holds."""
        if key == "anyOf" or (key == "allOf" and len(inner) == 1):
            return list(inner)
        if key == "allOf":
            raise _UnwrittenError("all of some schemas hold for it")
        found: Any = self.root
        for name in str(inner).split("/")[1:]:
            found = _mapping(found).get(name.replace("~1", "/").replace("~0", "~"))
        return [found]

    def _leaf(self, leaf: Mapping[str, Any]) -> str:
        """The values of an alternative, and what closes them."""
        kind, closes = leaf.get("type"), _plain(self.tags.closes)
        if "enum" in leaf or "const" in leaf:
            values = leaf["enum"] if "enum" in leaf else [leaf["const"]]
            return self._written(values, leaf) + closes
        if kind in ("boolean", "null"):
            return self._written((True, False) if kind == "boolean" else (None,), leaf) + closes
        if kind == "string":
            return self._text(leaf)
        regex = numbers(leaf) if kind in ("integer", "number") else None
        if regex is None:
            raise _UnwrittenError(f"its type {kind!r:.80}, with these bounds, is not of decimals")
        return f"(?:{regex}){closes}"

    def _written(self, values: Sequence[Any], schema: Mapping[str, Any]) -> str:
        """These values as the template writes them, or as JSON, where they are read back so."""
        ((key, _),) = ARGUMENTS.items()
        texts: dict[str, None] = {}
        for value in values:
            message = assistant("", call(NAME, {key: value}))
            whole = self.writer.answer(message, TOOLS) or ""
            written = whole.rpartition(f"{key}{self.tags.middle}")[2]
            ways = written.partition(self.tags.closes)[0], json.dumps(value, ensure_ascii=False)
            read = (text for text in ways if self._is_read(text, value, schema))
            texts.update(dict.fromkeys([*read][:1]))
        if not texts:
            raise _UnwrittenError("none of its values is read back as it is written")
        return f"(?:{'|'.join(map(_plain, texts))})"

    def _is_read(self, text: str, value: Any, schema: Mapping[str, Any]) -> bool:
        read = tagged_value(text, schema, self.shared)
        closed = (text + self.tags.closes).find(self.tags.closes) == len(text)
        return closed and json.dumps(read) == json.dumps(value)

    def _text(self, leaf: Mapping[str, Any]) -> str:
        """A text within its bounds, and what closes it."""
        closes = self.tags.closes
        mark = _outside(closes[0])
        pattern = leaf.get("pattern", PATTERNS.get(str(leaf.get("format"))))
        least, most = (leaf.get(key) for key in ("minLength", "maxLength"))
        if pattern is not None:
            regex = _anchored(pattern, closes[0])
            if regex is None or least is not None or most is not None:
                raise _UnwrittenError("its pattern and bounds are not one anchored pattern")
            return f"(?:{regex}){_plain(closes)}"
        if most is None:
            return (f"{mark}{{{least}}}" if least else "") + text_until(closes)
        return f"{mark}{{{least or 0},{most}}}{_plain(closes)}"


def text_until(end: str) -> str:
    """Any text that ends with `end` and has it nowhere else. What has its beginning elsewhere, up
    to where its first character stands in it again, is left out too.
    """
    first, again = end[0], end.find(end[0], 1)
    word = end if again < 0 else end[:again]
    if len(word) == 1:
        return f"{_outside(first)}*{_plain(end)}"
    begun, other = "", f"[^{_in_class(word[-1] + first)}]"
    for place in range(len(word) - 2, 0, -1):
        begun = f"(?:{_plain(word[place])}{begun})?"
        other = f"(?:[^{_in_class(word[place] + first)}]|{_plain(word[place])}{other})"
    started = f"{_plain(first)}(?:{begun}{_plain(first)})*"
    return f"(?:{_outside(first)}|{started}{other})*{started}{_plain(end[1:])}"


_ATOM = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?:|\(\?|\{[0-9]*,?[0-9]*\}|.", re.DOTALL)


def _anchored(pattern: Any, barred: str) -> str | None:
    """A pattern about a whole text, without its anchors; None for another one, and where a text may
    have the character `barred`.
    """
    atoms = _ATOM.findall(ascii_regex(str(pattern)))
    if len(atoms) < 2 or (atoms[0], atoms[-1]) != ("^", "$"):
        return None
    depth = 0
    for atom in atoms[1:-1]:
        depth += atom in ("(", "(?:")
        depth -= atom == ")"
        is_text = atom[0] in "\\[" or not (atom[0] in "()*+?|{}" or atom == "(?:")
        odd = (
            atom in ("^", "$", "(?")
            or (atom == "|" and not depth)
            or re.match(r"\\[0-9bBAzZkpP]", atom)
        )
        if odd or (is_text and re.fullmatch(atom, barred, re.DOTALL)):
            return None
    return "".join(atoms[1:-1])


def _mapping(schema: Any) -> Mapping[str, Any]:
    if not isinstance(schema, Mapping):
        raise _UnwrittenError("no schema says what it is")
    return schema


def _plain(text: str) -> str:
    """The regular expression of a text.

    >>> _plain("a.b\\n")
    'a\\\\.b\\\\n'
    """
    return re.sub(r"[\\.+*?()|\[\]{}^$]", r"\\\g<0>", text).replace("\n", r"\n")


def _in_class(characters: str) -> str:
    return re.sub(r"[\\\[\]^&~-]", r"\\\g<0>", characters).replace("\n", r"\n")


def _outside(character: str) -> str:
    return f"[^{_in_class(character)}]"
