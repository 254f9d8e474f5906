"""JSON Lines in and out: requests from lines, results and errors to the data of a line and back. Its
text is made by `strict_json.dump`.

A result is `{"id", "ok": true, "text", ...}` with every field of `GenerationResult` but `turn`. An
empty `transcript` is left out. An error is
`{"id", "ok": false, "error": {"type", "message", "hint", ...}}`. The options are the effective
ones, so a request with `{"options": line["options"]}` repeats the call. A score is `{"id", "ok":
true, "logprob", ...}` with every field of `Scored`, and a rollout has every field of `Rollout`.

>>> from returns.result import Failure
>>> from pipegen.core.errors import PromptTooLong
>>> to_plain(Failure(PromptTooLong(10, 4)), id="a")["error"]["message"]
'the prompt has 10 tokens; the limit is 4'
>>> from_plain(to_plain(Failure(PromptTooLong(10, 4))))
<Failure: the prompt has 10 tokens; the limit is 4 (hint: shorten the prompt)>
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple, TypeVar, get_args, overload

from returns.result import Failure, Result, Success

from pipegen.core.errors import InvalidRequest
from pipegen.core.foreign_calls import attempt
from pipegen.core.names import InvalidField
from pipegen.core.slots import Slot, is_ok
from pipegen.records import strict_json
from pipegen.records.codec import (
    declared,
    decode,
    encode,
    error_from,
    error_to_plain,
    options_to_plain,
)
from pipegen.records.frozen import plain_id, thaw
from pipegen.records.options import options_from
from pipegen.records.parse_request import request_from
from pipegen.records.requests import GenerationRequest
from pipegen.records.results import Finish, GenerationResult
from pipegen.records.rollouts import Rollout
from pipegen.records.scores import Scored

T = TypeVar("T", GenerationResult, Scored, Rollout)
LineId = str | int
"""The type of a line's `id`, which is returned unchanged."""
MAX_LINE_BYTES = 256 * 2**20
"""The longest line, images as data URLs included."""


def to_plain(
    slot: Slot[GenerationResult] | Slot[Scored] | Slot[Rollout],
    id: LineId | None = None,
    *,
    brief: bool = False,
    metadata: Mapping[str, object] | None = None,
) -> dict[str, Any]:
    """A slot as JSON data. `id` replaces the result's own id.

    `brief` keeps what people read: id, text, finish and error, and stop, reasoning, tool calls,
    samples, rounds and the transcript where there are some. `from_plain` does not read a brief result. Of a score
    `brief` leaves out the ids of its context, of a rollout nothing.

    `metadata` is added: what was carried along with the request. Of its values those that JSON has
    no form for become text, bytes as base64.

    >>> to_plain(Failure(InvalidRequest("no")), "a", metadata={"label": 1})["metadata"]
    {'label': 1}
    """
    if not isinstance(slot, Result):
        raise TypeError(
            f"to_plain takes a slot, not {type(slot).__name__}: Success(result) is a slot"
        )
    metadata_fields = _carried(metadata)
    if not is_ok(slot):
        return {"id": id, "ok": False, "error": error_to_plain(slot.failure()), **metadata_fields}
    answer: object = slot.unwrap()
    if not isinstance(answer, (GenerationResult, Scored, Rollout)):
        raise TypeError(
            "to_plain takes a slot of a GenerationResult, Scored or Rollout, not of"
            f" {type(answer).__name__}"
        )
    fields = encode(answer, brief=brief)
    fields.pop("id", None)
    return {"id": answer.id if id is None else id, "ok": True, **fields, **metadata_fields}


class Written(NamedTuple):
    """A result as an earlier run wrote it: `to_plain` would give the same values of it."""

    text: bytes
    """The JSON text of the values, without its opening brace."""
    id: Callable[[], str | None]
    """The id of the request that asks for it."""
    rest: int
    """Where the fields behind the id begin in the text."""
    prompt_tokens: int
    completion_tokens: int
    thinking_unfinished: bool

    @property
    def slot(self) -> Slot[GenerationResult]:
        """The slot, with the id of the request."""
        return from_plain({**json.loads(b"{" + self.text), "id": self.id()})

    def line(
        self, id: LineId, *, brief: bool = False, metadata: Mapping[str, object] | None = None
    ) -> bytes:
        """The line that `strict_json.dump` makes of what `to_plain` gives, with a line end."""
        if brief:
            values = to_plain(self.slot, id, brief=True, metadata=metadata)
            return strict_json.dump(values).encode() + b"\n"
        id_text = f'{{"id": {strict_json.dump(id)}'.encode()
        if not metadata:
            return id_text + self.text[self.rest :]
        metadata_text = f", {strict_json.dump(_carried(metadata))[1:]}\n".encode()
        return id_text + self.text[self.rest : -2] + metadata_text


def written_from(text: bytes, id: Callable[[], str | None]) -> Written | None:
    """The result of a journal's line, if `to_plain` would write it in the same way. None for lines
    of earlier versions, for failures, and for results with samples, rounds, log
    probabilities, earlier answers or routes that were tried.

    The line is matched, and not parsed: that takes a quarter of the time.

    text: that of `to_plain`'s values, without its opening brace.
    """
    found = _current_line().fullmatch(text)
    if found is None or not _are_current(found["options"]):
        return None
    unfinished = found["thinking_unfinished"] == b"true"
    counts = int(found["prompt_tokens"]), int(found["completion_tokens"])
    return Written(text, id, found.start("rest"), *counts, unfinished)


@functools.cache
def _current_line() -> re.Pattern[bytes]:
    """The form of a line whose result has no other records within it. A quote within a text has a
    backslash before it, so no text is taken for a field.
    """
    string, atoms = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"', r'[^][{}"]*+'
    value = string
    for _ in range(_NESTED):
        value = rf"(?:{string}|[\[{{]{atoms}(?:{value}{atoms})*+[\]}}])"
    forms = {
        "finish": f'"(?:{"|".join(finish.value for finish in Finish)})"',
        "margin": r"(?:null|-?\d++(?=[.e])[-+.e\d]++)",
        "options": r"(?P<options>\{.*\})",
        "prompt_tokens": r"(?P<prompt_tokens>\d++)",
        "completion_tokens": r"(?P<completion_tokens>\d++)",
        "thinking_unfinished": "(?P<thinking_unfinished>true|false)",
    }
    fields = [
        f'"{field.key}": '
        + (
            forms.get(field.key)
            or (
                r"(?:\[\]|null)"
                if _holds_records(field.hint)
                else rf"(?=\[){value}"
                if field.default == ()
                else rf"(?:{value}|[^][{{}}\", ]++)"
            )
        )
        for field in declared(GenerationResult)
        if not field.row.omit and field.key != "id"
    ]
    pattern = rf'"id": (?:null|{string})(?P<rest>, "ok": true, {", ".join(fields)}\}}\n)'
    return re.compile(pattern.encode(), re.DOTALL)


_NESTED = 4
"""How deep lists and objects of a field may be, for a line that is not parsed."""


def _holds_records(hint: object) -> bool:
    return dataclasses.is_dataclass(hint) or any(map(_holds_records, get_args(hint)))


@functools.lru_cache(maxsize=1024)
def _are_current(options: bytes) -> bool:
    """Whether these are options as `to_plain` writes them."""
    dumped = attempt(lambda: strict_json.dump(options_to_plain(options_from(json.loads(options)))))
    return dumped.value_or("").encode() == options


def _carried(metadata: Mapping[str, object] | None) -> dict[str, object]:
    return {"metadata": thaw(metadata, readable)} if metadata else {}


def readable(value: object) -> object:
    """A value as JSON has it: one that it has no form for as text, bytes as base64.

    >>> readable(b"ab"), readable(1.5), readable(float("inf"))
    ('YWI=', 1.5, 'Infinity')
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return strict_json.plain(value)
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


@overload
def from_plain(values: Mapping[str, object]) -> Slot[GenerationResult]: ...
@overload
def from_plain(values: Mapping[str, object], kind: type[T]) -> Slot[T]: ...
def from_plain(values: Mapping[str, object], kind: Any = GenerationResult) -> Slot[Any]:
    """The slot that `to_plain` was given, without metadata and with its id as text: of a result, or
    of the score or the rollout where `kind` is `Scored` or `Rollout`. Raises
    `InvalidField` for other data; numbers are not checked.
    """
    if not isinstance(values, Mapping):
        raise InvalidField(f"a line's values are a mapping, not {type(values).__name__}")
    if values.get("ok") is True:
        fields = {name: value for name, value in values.items() if name not in ("ok", "metadata")}
        if fields.get("id") is not None:
            fields["id"] = str(fields["id"])
        return Success(decode(fields, kind))
    if values.get("ok") is False:
        return Failure(error_from(values.get("error")))
    raise InvalidField(f"ok takes true or false, not {values.get('ok')!r:.200}")


class Line(NamedTuple):
    """A line of a file: its number, from 1, and its bytes, None if it is too long. It also has the
    offset of its end, and what messages call it.
    """

    number: int
    data: bytes | None
    end: int
    what: str = "line"


def lines_of(stream: BinaryIO, limit: int = MAX_LINE_BYTES) -> Iterator[Line]:
    """The lines of a stream that are not blank. Lines longer than `limit` bytes are not kept in
    memory.

    >>> import io
    >>> [line.data for line in lines_of(io.BytesIO(b"one\\n\\nthree, too long\\nfour"), limit=6)]
    [b'one\\n', None, b'four']
    """
    number = end = 0
    while data := stream.readline(limit + 1):
        number += 1
        end += len(data)
        too_long = len(data) > limit and not data.endswith(b"\n")
        while too_long and (chunk := stream.readline(2**20)):
            end += len(chunk)
            if chunk.endswith(b"\n"):
                break
        if number == 1:
            data = data.removeprefix(b"\xef\xbb\xbf")
        if too_long:
            yield Line(number, None, end)
        elif data and not data.isspace():
            yield Line(number, data, end)


def request_from_row(
    values: Mapping[str, object], number: int, what: str = "row"
) -> tuple[LineId, Slot[GenerationRequest]]:
    """The request of plain data, or `InvalidRequest`, with its id: its number where it has none.

    >>> request_from_row({"id": 1.5, "prompt": "Hi"}, 3)
    ('3', <Failure: row 3: id takes a string that is not empty or a whole number, not 1.5 (hint: ...)>)
    """
    row_id = plain_id(values.get("id"))
    if not (row_id is None or type(row_id) is int or (type(row_id) is str and row_id)):
        return str(number), Failure(
            InvalidRequest(
                f"{what} {number}: id takes a string that is not empty or a whole number, not"
                f" {row_id!r:.200}",
                hint=_READ_AS_FLOATS if type(row_id) is float else "",
            )
        )
    name = str(number) if row_id is None else row_id
    return name, request_from({**values, "id": str(name)}, f"{what} {number}")


_READ_AS_FLOATS = (
    "pandas makes floats of a column of whole numbers in which one is missing, and rounds large"
    ' ones: read it with dtype={"id": "Int64"}, or write text'
)


def values_of_line(line: Line) -> Slot[dict[str, object]]:
    """The JSON object of a line, or `InvalidRequest`, which names the line.

    >>> values_of_line(Line(3, b'{"prompt": "Hi"', 15))
    <Failure: line 3: not JSON: Expecting ',' delimiter at column 16 (hint: ...)>
    """
    line_name = f"{line.what} {line.number}"
    if line.data is None:
        return Failure(
            InvalidRequest(
                f"{line_name}: longer than {MAX_LINE_BYTES} bytes",
                hint="give images as paths instead of data URLs",
            )
        )
    try:
        values = strict_json.load(line.data.decode())
    except UnicodeDecodeError as refusal:
        return Failure(
            InvalidRequest(
                f"{line_name}: not UTF-8: byte 0x{line.data[refusal.start]:02x} at position"
                f" {refusal.start}"
            )
        )
    except strict_json.NotStrict as refusal:
        return Failure(InvalidRequest(f"{line_name}: not JSON: {refusal}"))
    if not isinstance(values, dict):
        return Failure(
            InvalidRequest(
                f'{line_name}: takes an object such as {{"prompt": "Hi"}}, not'
                f" {type(values).__name__}"
            )
        )
    return Success(values)
