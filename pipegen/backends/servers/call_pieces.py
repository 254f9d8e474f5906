"""Tool calls of a chat server, joined of the pieces in which a stream brings them.

>>> calls = CallPieces()
>>> for piece in (
...     {"index": 0, "id": "a", "function": {"name": "add", "arguments": ""}},
...     {"index": 0, "id": "", "function": {"name": "", "arguments": "{}"}},
... ):
...     calls.add(piece, 0)
>>> dict(calls.joined[0]["function"])
{'name': 'add', 'arguments': '{}'}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipegen.core.errors import MalformedResponse
from pipegen.records import strict_json
from pipegen.records.frozen import freeze, thaw


class CallPieces:
    """The calls of one answer: strings of arguments are joined, everything else comes once. Empty
    words say nothing. Arguments that come as an object become its JSON text.
    """

    def __init__(self) -> None:
        self._calls: dict[tuple[int, int], dict[str, Any]] = {}
        """By index, and by the number of calls that had it before: some servers give several the
        same one.
        """
        self._newest: dict[int, int] = {}

    @property
    def joined(self) -> tuple[Mapping[str, Any], ...]:
        """The calls so far, in their order."""
        return tuple(freeze(self._calls[key]) for key in sorted(self._calls))

    def add(self, call: Mapping[str, object], place: int) -> MalformedResponse | None:
        """Add a call, or a piece of one; what is wrong with it. Another id begins another call,
        where it has a name. So does a name with arguments behind those that are whole: some servers
        have one index for all calls, and no ids.
        """
        given, function, new_id = call.get("index"), call.get("function"), call.get("id")
        index = place if given is None else given
        if type(index) is not int:
            return MalformedResponse(f"tool_calls[{place}].index is {index!r:.40}")
        key = index, self._newest.get(index, 0)
        old_id = self._calls.get(key, {}).get("id")
        if new_id and old_id and new_id != old_id:
            known = [
                other
                for other, made in self._calls.items()
                if other[0] == index and made.get("id") == new_id
            ]
            if not known and not (isinstance(function, Mapping) and function.get("name")):
                return MalformedResponse(
                    f"the id of tool_calls[{place}] changes from {old_id!r:.60} to {new_id!r:.60}"
                    " in the middle of the call"
                )
            key = known[0] if known else (index, key[1] + 1)
            self._newest[index] = key[1]
        elif not new_id and _begins(function, self._calls.get(key, {}).get("function")):
            key = index, key[1] + 1
            self._newest[index] = key[1]
        tool_call = self._calls.setdefault(key, {})
        for name, value in call.items():
            if name not in ("index", "function") and _says(value, name, tool_call):
                tool_call[name] = value
        if function is None:
            return None
        return _add_function(
            tool_call.setdefault("function", {}), function, f"tool_calls[{place}].function"
        )


def _begins(function: object, known: Mapping[str, object] | None) -> bool:
    """Whether a piece is of another call than the one that is known."""
    if not isinstance(function, Mapping) or not function.get("name") or not known:
        return False
    whole = isinstance(strict_json.loaded(known.get("arguments"), dict), dict)
    return whole and bool(function.get("arguments"))


def _says(value: object, name: str, known: Mapping[str, object]) -> bool:
    """Whether a value says anything that is not known."""
    return value is not None and (value != "" or name not in known)


def _add_function(function: dict[str, Any], value: object, place: str) -> MalformedResponse | None:
    if not isinstance(value, Mapping):
        return MalformedResponse(f"{place} is {type(value).__name__}, not an object")
    if isinstance(value.get("arguments"), Mapping):
        value = {**value, "arguments": strict_json.dump(thaw(value["arguments"]))}
    for name in ("name", "arguments"):
        if not isinstance(value.get(name), (str, type(None))):
            return MalformedResponse(
                f"{place}.{name} is {type(value[name]).__name__}, not a string"
            )
    for name, entry in value.items():
        if name != "arguments" and _says(entry, name, function):
            function[name] = entry
    if value.get("arguments") is not None:
        function["arguments"] = function.get("arguments", "") + value["arguments"]
    return None
