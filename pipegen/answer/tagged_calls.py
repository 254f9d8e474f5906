r"""The form of a forced call whose arguments are tagged values, as the chat template writes them.

One regular expression has the tags and the values: parameters stand in the order of the schema, and
those that are not required may be left out. A text is anything up to the tag behind it. Numbers,
booleans and null are as JSON or Python writes them. A list or an object is JSON of its schema,
generated in a call of its own. `pipegen.answer.tool_calls` reads all of these.

>>> text_until("</a>")
'(?:[^<]|<(?:(?:|/|/a)<)*(?:[^</]|/[^<a]|/a[^<>]))*<(?:(?:|/|/a)<)*/a>'
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from returns.result import Failure, Success

from pipegen.answer.regex_check import ascii_regex, edge_in, found_in
from pipegen.answer.value_patterns import BOUNDS, PATTERNS, numbers
from pipegen.core.errors import TemplateFailed
from pipegen.core.foreign_calls import attempt
from pipegen.core.slots import Slot, is_ok
from pipegen.records.call_form import ArgumentsForm, ValueForm
from pipegen.records.option_groups import StructuredOptions
from pipegen.template.call_syntax import ARGUMENTS, NAME, TOOLS, Syntax, Writer, common_beginning
from pipegen.template.template import assistant, call

_WORDS = {"boolean": "[Tt]rue|[Ff]alse", "null": "null|None"}
_DEEPEST = 32
"""So many references within each other are followed."""
_CHOICE = {"enum", "const"}
_AWKWARD = (7, ' "a"\n\\ <b>é ')
"""Values that are to have the same tags as a plain text, and are to be written as they are."""


class Tags(NamedTuple):
    """What the template writes around each tagged value: `opens`, its key, `middle`, the value and
    `closes`.
    """

    opens: str
    middle: str
    closes: str


def tags_of(syntax: Syntax, writer: Writer) -> Tags | None:
    """The tags of a syntax; None where they depend on the value, where a value is closed otherwise
    before another one than at the end, or where it is not closed.
    """
    if syntax.tags is None:
        return None
    first, middle, following = syntax.tags
    found = []
    for size in range(1, len(common_beginning(following, syntax.tail)) + 1):
        closes, opens, ends = following[:size], following[size:], syntax.tail[size:]
        begins = first.removesuffix(opens)
        is_closed = opens and begins != first and ends.removesuffix(syntax.end)
        if is_closed and begins + ends == syntax.empty_tail:
            found.append(Tags(opens, middle, closes))
    # no tag and no line is cut into two
    tags = max(found, key=lambda one: (one.closes[-1] in ">\n", len(one.closes)), default=None)
    ((key, _),) = ARGUMENTS.items()
    for value in _AWKWARD:
        text = writer.answer(assistant("", call(NAME, {key: value})), TOOLS) or ""
        if tags and f"{middle}{value}{tags.closes}" not in text:
            return None
    return tags


@functools.lru_cache(maxsize=256)
def tagged_form(schema: str, tags: Tags, closes: tuple[int, ...], ends: str) -> Slot[ArgumentsForm]:
    """The arguments that a tool's schema, in JSON, allows, up to the text `ends`. The ids `closes`
    close a value. `TemplateFailed` names the parameter that is not written so.
    """
    try:
        if re.search(r'"\$ref": ?"(?!#/(\$defs|definitions)/)', schema):
            raise _UnwrittenError("its schema has a reference that leads out of $defs")
        return Success(_ToolForm(json.loads(schema), tags).arguments(closes, ends))
    except _UnwrittenError as refusal:
        return Failure(TemplateFailed(str(refusal)))


class _UnwrittenError(ValueError):
    """Something in a schema that is not written as tagged values."""


class _ToolForm:
    """The form of one tool's arguments."""

    def __init__(self, schema: object, tags: Tags) -> None:
        self.root = _schema(schema)
        self.shared = {key: self.root[key] for key in ("$defs", "definitions") if key in self.root}
        self.tags, self.any_text = tags, text_until(tags.closes)

    def arguments(self, closes: tuple[int, ...], ends: str) -> ArgumentsForm:
        beside = _limits(self.root) - {"type", "properties", "required", "additionalProperties"}
        if beside:
            raise _UnwrittenError(f"its schema has {min(beside)!r} beside its properties")
        required = self.root.get("required") or ()
        entries = self.root.get("properties", {})
        entries = {
            **dict.fromkeys((*entries, *required), self.root.get("additionalProperties", True)),
            **entries,
        }
        rest, values = _plain(ends), []
        for key, entry in reversed(entries.items()):
            opens = f"{self.tags.opens}{key}{self.tags.middle}"
            begins, may = _plain(opens), "" if key in required else "?"
            try:
                value = self._value(key, entry)
            except _UnwrittenError as refusal:
                raise _UnwrittenError(f"its parameter {key!r:.80}: {refusal}") from None
            if value is not None:
                rest = f"(?:{begins}{value}){may}{rest}"
                continue
            schema = json.dumps({**self.shared, **entry}, ensure_ascii=False)
            form, then = StructuredOptions(json_schema=schema), StructuredOptions(regex=rest)
            values.append(ValueForm(opens=opens, form=form, closes=closes, then=then))
            rest = f"(?:{begins}|{rest})" if may else begins
        return ArgumentsForm(form=StructuredOptions(regex=rest), values=tuple(values))

    def _value(self, key: str, entry: object) -> str | None:
        """The regular expression of a value and of what closes it; None where it is JSON."""
        if self.tags.middle in key + self.tags.middle[:-1]:
            raise _UnwrittenError(f"its name has {self.tags.middle!r}, which ends names")
        found = [self._leaf(leaf) for leaf in self._leaves(entry, _DEEPEST)]
        if self.any_text in found:
            return self.any_text
        if None not in found:
            return f"(?:{'|'.join(map(str, found))}){_plain(self.tags.closes)}"
        if not {None, *_WORDS.values()}.issuperset(found):
            raise _UnwrittenError("it is a list or an object, or another value")
        if not re.search(r"[\0-\x1f]", self.tags.closes):
            raise _UnwrittenError(f"its JSON may hold {self.tags.closes!r}, which ends values")
        return None

    def _leaves(self, entry: object, depth: int) -> Iterator[Mapping[str, Any]]:
        """The schemas of which one is to hold, each of one type or of a choice of values."""
        entry = {} if entry is True else _schema(entry)
        limits = _limits(entry)
        limit = next((key for key in ("anyOf", "allOf", "$ref") if limits == {key}), None)
        if limit is None:
            kinds = entry.get("type", None if limits else "string")
            for kind in kinds if isinstance(kinds, list) and not limits & _CHOICE else [kinds]:
                yield {**entry, "type": kind} if kind else entry
            return
        parts = [self._target(entry[limit])] if limit == "$ref" else entry[limit]
        if not depth or (limit == "allOf" and len(parts) > 1):
            raise _UnwrittenError(f"its schema has {limit!r} of several schemas")
        for part in parts:
            yield from self._leaves(part, depth - 1)

    def _target(self, reference: object) -> Any:
        found: object = self.root
        for part in str(reference).split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            found = found.get(name) if isinstance(found, Mapping) else None
        return found

    def _leaf(self, leaf: Mapping[str, Any]) -> str | None:
        """The regular expression of the values of a schema, any text with what closes it; None
        where they are JSON.
        """
        kind, limits = leaf.get("type"), _limits(leaf) - {"type"}
        regex = None
        if limits & _CHOICE:
            return self._chosen(leaf)
        if kind in ("array", "object"):
            return None
        if kind in _WORDS and not limits:
            return _WORDS[kind]
        if kind in ("integer", "number") and limits <= {*BOUNDS}:
            regex = numbers(leaf)
        elif kind == "string" and limits <= {"minLength", "maxLength"}:
            least, most = int(leaf.get("minLength", 0)), leaf.get("maxLength")
            if not least and most is None:
                return self.any_text
            if most is None or least <= most:
                size = "" if most is None else int(most)
                regex = f"[^{_in_class(self.tags.closes[0])}]{{{least},{size}}}"
        elif kind == "string" and len(limits) == 1:
            pattern = leaf.get("pattern", PATTERNS.get(str(leaf.get("format"))))
            regex = _anchored(str(pattern), self.tags.closes[0])
        if regex is None:
            raise _UnwrittenError(f"no regular expression says {json.dumps(leaf):.200}")
        return regex

    def _chosen(self, leaf: Mapping[str, Any]) -> str:
        """The values of `enum` or `const`, each as JSON and as Python writes it."""
        from pipegen.answer.json_check import wrong_in_json

        closes = self.tags.closes
        texts: list[str] = []
        for value in leaf["enum"] if "enum" in leaf else [leaf["const"]]:
            ways = (value,) if isinstance(value, str) else (json.dumps(value), str(value))
            texts += [] if wrong_in_json(value, {**self.shared, **leaf}) else ways
        found = [text for text in dict.fromkeys(texts) if (text + closes).find(closes) == len(text)]
        if not found:
            raise _UnwrittenError("none of its values has the form of a tagged value")
        return "|".join(map(_plain, found))


def text_until(end: str) -> str:
    """Any text that ends with `end` and has it nowhere else. What has its beginning elsewhere, up
    to where its first character stands in it again, is left out too.
    """
    again = end.find(end[0], 1)
    word = end if again < 0 else end[:again]
    first, outside = _plain(word[0]), f"[^{_in_class(word[0])}]"
    if len(word) == 1:
        return f"{outside}*{_plain(end)}"
    begun = [_plain(word[1:size]) for size in range(1, len(word))]
    other = [
        f"{text}[^{_in_class(word[0] + word[size])}]" for size, text in enumerate(begun, start=1)
    ]
    started = f"{first}(?:(?:{'|'.join(begun)}){first})*"
    return f"(?:{outside}|{started}(?:{'|'.join(other)}))*{started}{_plain(end[1:])}"


_ATOM = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL)


def _anchored(pattern: str, barred: str) -> str | None:
    """A pattern about a whole text, without its anchors; None for another one, and where a text may
    have the character `barred`.
    """
    atoms = _ATOM.findall(ascii_regex(pattern))
    if len(atoms) < 2 or [atoms[0], atoms[-1]] != ["^", "$"]:
        return None
    if (
        re.search(r"(?<!\\)(?:\\\\)*\(\?(?!:)", pattern)
        or edge_in(pattern)
        or not is_ok(attempt(lambda: re.compile(pattern)))
    ):
        return None
    for atom in atoms[1:-1]:
        may_have = atom[0] in "\\[" and found_in(atom, barred) is not False
        if may_have or atom in ("^", "$", ".", barred):
            return None
    return f"(?:{''.join(atoms[1:-1])})"


def _limits(schema: Mapping[str, object]) -> set[str]:
    """The keywords of a schema that leave values out."""
    from pipegen.answer.json_check import limits_of

    return limits_of(schema)


def _schema(schema: object) -> Mapping[str, Any]:
    from pipegen.answer.json_check import wrong_in_schema

    wrong = wrong_in_schema(schema)
    if wrong or not isinstance(schema, Mapping):
        raise _UnwrittenError(f"no schema says what it is{wrong and f': {wrong}'}")
    return schema


def _plain(text: str) -> str:
    """The regular expression of a text.

    >>> _plain("a.b\\n")
    'a\\\\.b\\\\n'
    """
    return re.sub(r"[\\.+*?()|\[\]{}^$]", r"\\\g<0>", text).replace("\n", r"\n")


def _in_class(characters: str) -> str:
    return re.sub(r"[\\\[\]^&~-]", r"\\\g<0>", characters).replace("\n", r"\n")
