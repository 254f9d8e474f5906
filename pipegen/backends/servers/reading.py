"""What every engine's answer is read with: typed looks into plain data, and bodies merged without
touching them.

>>> merged({"a": {"b": 1}, "c": 2}, {"a": {"d": 3}, "c": None})
{'a': {'b': 1, 'd': 3}}
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from returns.result import Failure, Success

from pipegen.backends.http.plain_json import decoded
from pipegen.backends.servers.wire import WireReply
from pipegen.core.errors import InvalidRequest, MalformedResponse
from pipegen.core.slots import Slot
from pipegen.records.answer_parts import whole_number
from pipegen.records.frozen import NESTING


def merged(body: Mapping[str, object], more: Mapping[str, object]) -> dict[str, object]:
    """`body` with `more` merged in, deeply; `None` takes a key away. Neither argument is
    changed.
    """
    result: dict[str, object] = dict(body)
    for key, value in more.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping):
            old_value = result.get(key)
            result[key] = merged(old_value if isinstance(old_value, Mapping) else {}, value)
        else:
            result[key] = list(value) if isinstance(value, tuple) else value
    return result


def malformed(words: str) -> Failure[Any]:
    """A `MalformedResponse` as a slot."""
    return Failure(MalformedResponse(words))


def json_of(data: bytes, what: str = "the answer") -> Slot[Any]:
    """The JSON object (or array) in these bytes, nested no deeper than `fields.NESTING`.

    >>> json_of(b'{"choices": [').failure().message
    'the answer (13 bytes) is not JSON: Expecting value at character 13'
    >>> json_of(b"[" * 100 + b"]" * 100).failure().message
    'the answer (200 bytes) is nested too deeply'
    """
    try:
        value = decoded(data)
    except UnicodeDecodeError:
        return malformed(f"{what} ({len(data)} bytes) is not text")
    except json.JSONDecodeError as refusal:
        return malformed(
            f"{what} ({len(data)} bytes) is not JSON: {refusal.msg} at character {refusal.pos}"
        )
    except RecursionError:
        return malformed(f"{what} ({len(data)} bytes) is nested too deeply")
    except ValueError:  # a whole number of thousands of digits
        return malformed(f"{what} ({len(data)} bytes) holds a number that is too long")
    if data.count(b"[") + data.count(b"{") > NESTING and _deeper(value):
        return malformed(f"{what} ({len(data)} bytes) is nested too deeply")
    if (b"\\ud" in data or b"\\uD" in data) and not _is_text(value):
        return malformed(
            f"{what} ({len(data)} bytes) holds half a surrogate pair, which is no character"
        )
    return (
        Success(value)
        if isinstance(value, (dict, list))
        else malformed(f"{what} is {type(value).__name__}, not an object")
    )


def _is_text(value: object) -> bool:
    """Whether all strings of plain data can be written as UTF-8."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _deeper(value: Any) -> bool:
    """Whether a value is nested too deeply to be read by recursion."""
    level = [value]
    for _ in range(NESTING + 1):
        level = [
            part
            for entry in level
            for part in (entry.values() if isinstance(entry, dict) else entry)
            if isinstance(part, (dict, list))
        ]
        if not level:
            return False
    return True


def found(names: tuple[str, ...], *holders: Mapping[str, object]) -> object:
    """The first value of these fields that is there, in the first object that has one; else None.

    >>> found(("a", "b"), {"a": None, "b": 1}, {"a": 2})
    1
    """
    for holder in holders:
        for name in names:
            if (value := holder.get(name)) is not None:
                return value
    return None


def ids_of(value: object, place: str) -> Slot[tuple[int, ...]]:
    """A list of token ids.

    >>> ids_of([1, True], "token_ids").failure().message
    'token_ids[1] is True, not a token id'
    """
    if not isinstance(value, list):
        return malformed(f"{place} is {type(value).__name__}, not a list of token ids")
    if value and (set(map(type, value)) != {int} or min(value) < 0):
        position, number = next(
            (position, number)
            for position, number in enumerate(value)
            if type(number) is not int or number < 0
        )
        return malformed(f"{place}[{position}] is {number!r:.40}, not a token id")
    return Success(tuple(value))


def usage_of(usage: object) -> dict[str, int]:
    """The numbers of tokens that a server counts, those in its prefix cache among them.

    >>> usage_of({"prompt_tokens": 3, "completion_tokens": None}), usage_of(None)
    ({'prompt_tokens': 3}, {})
    >>> usage_of({"prompt_tokens_details": {"cached_tokens": 2}})
    {'cached_tokens': 2}
    """
    if not isinstance(usage, dict):
        return {}
    details = usage.get("prompt_tokens_details")
    if isinstance(details, dict):
        usage = {"cached_tokens": details.get("cached_tokens"), **usage}
    return {
        name: number for name, value in usage.items() if (number := whole_number(value)) is not None
    }


def alone(value: object) -> object:
    """What a list of one holds: Gemini answers errors so. Anything else stays as it is."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def error_message(reply: WireReply) -> tuple[str, Mapping[str, object]]:
    """The message of a refusal in any of the shapes that servers use, and the object that held it.

    >>> [
    ...     error_message(WireReply(status=400, body=body))[0]
    ...     for body in (
    ...         b'{"error": {"message": "a"}}',
    ...         b'{"error": "b"}',
    ...         b'{"message": "c"}',
    ...         b'[{"error": {"message": "d"}}]',
    ...         b"e",
    ...     )
    ... ]
    ['a', 'b', 'c', 'd', 'e']
    """
    text = reply.body[:100_000].decode(errors="replace").strip()
    value = json_of(text.encode()).map(alone).value_or(None)
    if isinstance(value, Mapping):
        for holder in (value.get("error"), value):
            if isinstance(holder, str):
                return holder[:2000], value
            if isinstance(holder, Mapping):
                words = next(
                    (holder[name] for name in ("message", "detail") if holder.get(name)), None
                )
                if words is not None:
                    return (words if isinstance(words, str) else json.dumps(words))[:2000], holder
    return text[:2000], {}


def refused_ids(
    token_ids: Sequence[int], vocab_size: int, image_token_id: int | None, images: int
) -> InvalidRequest | None:
    """Why ids must not reach a server, which they could crash or silently mislead; None where
    nothing is wrong with them.

    >>> refused_ids([1, -5], 100, None, 0).message
    'prompt id -5 at position 1 is outside the vocabulary of 100 ids'
    """
    if not token_ids:
        return InvalidRequest("the prompt is empty: an engine needs at least one token")
    low, high = min(token_ids), max(token_ids)
    if low < 0 or high >= vocab_size:
        bad = low if low < 0 else high
        return InvalidRequest(
            f"prompt id {bad} at position {list(token_ids).index(bad)} is outside the vocabulary of"
            f" {vocab_size} ids"
        )
    marks = token_ids.count(image_token_id) if image_token_id is not None else 0
    if marks != images:
        return InvalidRequest(f"the prompt holds {marks} image placeholders for {images} images")
    return None
