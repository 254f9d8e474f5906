"""JSON Lines in and out: requests from lines, results and errors to plain data and back.

A result is `{"id", "ok": true, "text", ...}` with every field of `GenerationResult`, an error
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
import marshal
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple, TypeVar, overload

from returns.result import Failure, Result, Success

from pipegen.core import errors
from pipegen.core.border import attempt
from pipegen.core.errors import GenerationError, InvalidRequest
from pipegen.core.functional import without_none
from pipegen.core.slots import Slot, is_ok
from pipegen.records import strict_json
from pipegen.records.fields import InvalidField, names_of, nearest
from pipegen.records.frozen import freeze, thaw
from pipegen.records.messages import ImageSource, VideoSource
from pipegen.records.next_turn import transcript_field
from pipegen.records.options import GenerationOptions, flat_values, options_from
from pipegen.records.plain import request_from
from pipegen.records.requests import GenerationRequest
from pipegen.records.results import Finish, GenerationResult, TokenLogprob
from pipegen.records.rollouts import Rollout
from pipegen.records.scores import Scored

__all__ = [
    "MAX_LINE_BYTES",
    "Line",
    "LineId",
    "Written",
    "error_from",
    "error_to_plain",
    "from_plain",
    "is_current",
    "image_to_plain",
    "lines_of",
    "logprobs_from",
    "prompt_logprobs_from",
    "readable",
    "request_from_row",
    "to_plain",
    "values_of_line",
]

T = TypeVar("T", GenerationResult, Scored, Rollout)
LineId = str | int
"""The type of a line's `id`, which is returned unchanged."""
MAX_LINE_BYTES = 256 * 2**20
"""The longest line, images as data URLs included."""
BRIEF = (
    *("text", "finish", "stop", "reasoning", "thinking_unfinished", "tool_calls"),
    *("tool_calls_unread", "samples", "failed_samples", "rounds", "rounds_end"),
)
"""The fields of a brief result: `text` and `finish`, and of the others those that hold
something."""


def to_plain(
    slot: Slot[GenerationResult] | Slot[Scored] | Slot[Rollout],
    id: LineId | None = None,
    *,
    brief: bool = False,
    metadata: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A slot as JSON data. `id` replaces the result's own id.

    `brief` keeps what people read: id, text, finish and error, and stop, reasoning, tool calls,
    samples and rounds where there are some. A brief result is not read back. Of a score `brief`
    leaves out the ids of its context, of a rollout nothing.

    `metadata` is added: what was carried along with the request. Of its values those that JSON has
    no form for become text, bytes as base64.

    >>> to_plain(Failure(errors.Timeout("slow")), "a", metadata={"label": 1})["metadata"]
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
    if isinstance(answer, GenerationResult):
        result = _result(answer, brief)
    elif isinstance(answer, Scored):
        result = _scored(answer, brief)
    elif isinstance(answer, Rollout):
        result = _rollout(answer)
    else:
        raise TypeError(
            "to_plain takes a slot of a GenerationResult, Scored or Rollout, not of"
            f" {type(answer).__name__}"
        )
    return {
        "id": answer.id if id is None else id,
        "ok": True,
        **{name: value for name, value in result.items() if name != "id"},
        **metadata_fields,
    }


class Written(NamedTuple):
    """A result as an earlier run wrote it: `to_plain` would give the same values of it."""

    values: Mapping[str, Any]
    text: bytes
    """The JSON text of the values, without its opening brace."""
    id: Callable[[], str | None]
    """The id of the request that asks for it."""

    @property
    def slot(self) -> Slot[GenerationResult]:
        """The slot, with the id of the request."""
        return from_plain({**self.values, "id": self.id()})

    def line(
        self, id: LineId, *, brief: bool = False, metadata: Mapping[str, Any] | None = None
    ) -> bytes:
        """The line that `strict_json.dump` makes of what `to_plain` gives, with a line end."""
        id_text = f'"id": {strict_json.dump(self.values["id"])}, '.encode()
        if brief or not self.text.startswith(id_text):
            values = to_plain(self.slot, id, brief=brief, metadata=metadata)
            return strict_json.dump(values).encode() + b"\n"
        metadata_text = f", {strict_json.dump(_carried(metadata))[1:-1]}" if metadata else ""
        rest = self.text[len(id_text) : -2]
        return f'{{"id": {strict_json.dump(id)}, '.encode() + rest + metadata_text.encode() + b"}\n"


def is_current(values: Mapping[str, Any]) -> bool:
    """Whether `to_plain` gives just these values for the slot that `from_plain` makes of them.

    False for those of earlier versions, and for what takes more than a look. That is failures, and
    results with samples, log probabilities, earlier answers or routes that were tried.
    """
    return (
        tuple(values) == _COLUMNS
        and values["ok"] is True
        and [values[name] for name in _PLAIN_IF_EMPTY] == [[], [], [], [], None, None, None]
        and values["finish"] in _FINISHES
        and (values["margin"] is None or type(values["margin"]) is float)
        and all(type(values[name]) is list for name in _LISTS)
        and _are_current(values["options"])
    )


_UNWRITTEN = ("turn", "written_transcript")
_COLUMNS = (
    *("id", "ok"),
    *(f.name for f in dataclasses.fields(GenerationResult) if f.name not in ("id", *_UNWRITTEN)),
)
_PLAIN_IF_EMPTY = (
    *("tried", "samples", "rounds", "failed_samples"),
    *("previous", "logprobs", "prompt_logprobs"),
)
_LISTS = (
    *("prompt_token_ids", "token_ids", "forced"),
    *("tool_calls", "image_grid_thw", "image_digests", "video_times"),
)
_FINISHES = frozenset(finish.value for finish in Finish)


def _are_current(options: Any) -> bool:
    """Whether these are options as `to_plain` writes them."""
    try:
        return _are_current_options(marshal.dumps(options, 2))
    except ValueError:  # no plain data
        return False


@functools.lru_cache(maxsize=1024)
def _are_current_options(data: bytes) -> bool:
    values = marshal.loads(data)  # noqa: S302 - which this process wrote
    dumped = attempt(lambda: strict_json.dump(_options(options_from(values))))
    return is_ok(dumped) and dumped.unwrap() == strict_json.dump(values)


def _carried(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    return {"metadata": thaw(metadata, readable)} if metadata else {}


def readable(value: Any) -> Any:
    """A value as JSON has it: one that it has no form for as text, bytes as base64.

    >>> readable(b"ab"), readable(1.5), readable(float("inf"))
    ('YWI=', 1.5, 'Infinity')
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return strict_json.plain(value)
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


@overload
def from_plain(values: Mapping[str, Any]) -> Slot[GenerationResult]: ...
@overload
def from_plain(values: Mapping[str, Any], kind: type[T]) -> Slot[T]: ...
def from_plain(values: Mapping[str, Any], kind: Any = GenerationResult) -> Slot[Any]:
    """The slot that `to_plain` was given, without metadata: of a result, or of the score or the
    rollout where `kind` is `Scored` or `Rollout`. Raises `InvalidField` for other data.
    """
    if not isinstance(values, Mapping):
        raise InvalidField(f"a line's values are a mapping, not {type(values).__name__}")
    if values.get("ok") is True:
        return Success(
            _read(
                {name: value for name, value in values.items() if name not in ("ok", "metadata")},
                kind,
            )
        )
    if values.get("ok") is False:
        return Failure(error_from(values.get("error")))
    raise InvalidField(f"ok takes true or false, not {values.get('ok')!r:.200}")


def error_to_plain(error: GenerationError) -> dict[str, Any]:
    """An error as JSON data; `error_from` reads it.

    >>> from pipegen.core.errors import PromptTooLong
    >>> plain = error_to_plain(PromptTooLong(10, 4))
    >>> plain["type"], plain["limit"]
    ('PromptTooLong', 4)
    """
    fields = {
        f.name: getattr(error, f.name)
        for f in dataclasses.fields(error)
        if f.name not in ("incident", "lasting") or getattr(error, f.name)
    }
    earlier = [error_to_plain(earlier_error) for earlier_error in fields.pop("earlier")]
    return {
        "type": type(error).__name__,
        **strict_json.plain(fields),
        **({"earlier": earlier} if earlier else {}),
    }


_ERRORS: Mapping[str, type[GenerationError]] = {
    kind.__name__: kind
    for kind in (getattr(errors, name) for name in errors.__all__)
    if issubclass(kind, GenerationError)
}


def error_from(values: Any) -> GenerationError:
    """The error that `error_to_plain` was given. Raises `InvalidField` for an unknown type or
    field.
    """
    if not isinstance(values, Mapping):
        raise InvalidField(f"error takes a mapping with a 'type', not {type(values).__name__}")
    fields = dict(values)
    kind = fields.pop("type", None)
    if kind not in _ERRORS:
        raise InvalidField(f"error.type takes one of {', '.join(_ERRORS)}, not {kind!r:.200}")
    field_names = {f.name for f in dataclasses.fields(_ERRORS[kind])}
    for name in fields:
        if name not in field_names:
            raise InvalidField(f"{kind} has no field {name!r:.200}{nearest(name, field_names)}")
    if isinstance(fields.get("retry_after"), (str, int)):
        fields["retry_after"] = float(fields["retry_after"])
    return _ERRORS[kind](
        **{
            **fields,
            "earlier": tuple(
                error_from(earlier_error) for earlier_error in fields.get("earlier", ())
            ),
        }
    )


def _result(result: GenerationResult, brief: bool) -> dict[str, Any]:
    if brief:
        return _brief(result)
    fields = {name: getattr(result, name) for name in names_of(result) if name not in _UNWRITTEN}
    fields["finish"] = result.finish.value
    fields["options"] = _options(result.options)
    fields["tried"] = [error_to_plain(error) for error in result.tried]
    fields["previous"] = None if result.previous is None else _result(result.previous, brief)
    fields["samples"] = [_result(sample, brief) for sample in result.samples]
    fields["rounds"] = [_result(round_result, brief) for round_result in result.rounds]
    fields["failed_samples"] = _failed_samples(result)
    for name in ("logprobs", "prompt_logprobs"):
        if fields.get(name) is not None:
            fields[name] = [
                logprob and {name: getattr(logprob, name) for name in names_of(logprob)}
                for logprob in fields[name]
            ]
    values: dict[str, Any] = strict_json.plain({**fields, **transcript_field(result)})
    return values


def _failed_samples(result: GenerationResult) -> list[dict[str, Any]]:
    return [
        {"sample": sample, "error": error_to_plain(error)}
        for sample, error in result.failed_samples
    ]


def _brief(result: GenerationResult) -> dict[str, Any]:
    fields = {
        **{name: getattr(result, name) for name in BRIEF},
        "finish": result.finish.value,
        "samples": [_brief(sample) for sample in result.samples],
        "rounds": [_brief(round_result) for round_result in result.rounds],
        "failed_samples": _failed_samples(result),
        **transcript_field(result),
    }
    values: dict[str, Any] = strict_json.plain(
        {
            name: value
            for name, value in fields.items()
            # the stop may be token 0
            if value or name == "text" or type(value) is int
        }
    )
    return values


@functools.lru_cache(maxsize=1024)  # the rows of a job have few distinct options
def _options(options: GenerationOptions) -> dict[str, Any]:
    return without_none(flat_values(options))


def _scored(scored: Scored, brief: bool) -> dict[str, Any]:
    fields = {
        f.name: getattr(scored, f.name)
        for f in dataclasses.fields(scored)
        if not (brief and f.name == "prompt_token_ids")
    }
    values: dict[str, Any] = strict_json.plain(
        {**fields, "tried": [error_to_plain(error) for error in scored.tried]}
    )
    return values


def _rollout(rollout: Rollout) -> dict[str, Any]:
    fields = {name: getattr(rollout, name) for name in names_of(rollout)}
    if rollout.images is not None:
        fields["images"] = [image_to_plain(image) for image in rollout.images]
    values: dict[str, Any] = strict_json.plain(fields)
    return values


def image_to_plain(source: ImageSource) -> Any:
    """An image as text that is read as the same one: its path or URL, or a data URL of its bytes. A
    video is `{"video": ...}` with such a text, or `{"frames": [...], "times": [...]}`.

    >>> image_to_plain(ImageSource(path="a.png")), image_to_plain(ImageSource(data=b"ab"))
    ('a.png', 'data:application/octet-stream;base64,YWI=')
    """
    if isinstance(source, VideoSource):
        if source.frames:
            frames = [image_to_plain(frame) for frame in source.frames]
            return {"frames": frames, "times": list(source.times)}
        return {"video": _as_text(source)}
    return _as_text(source)


def _source_from(value: Any) -> ImageSource:
    if isinstance(value, Mapping):
        return VideoSource.of(value.get("video", value))
    return ImageSource.of(value)


def _as_text(source: ImageSource) -> str:
    if source.data is None:
        return source.path or source.url or ""
    return f"data:application/octet-stream;base64,{base64.b64encode(source.data).decode()}"


def logprobs_from(values: Any) -> tuple[TokenLogprob, ...]:
    """The log probabilities of their plain form. Raises `KeyError`, `TypeError` or `ValueError` for
    other data.
    """
    tops = ([(token_id, float(logprob)) for token_id, logprob in entry["top"]] for entry in values)
    return tuple(
        TokenLogprob(
            token_id=entry["token_id"],
            logprob=float(entry["logprob"]),
            top=tuple(top),
            # lines of older versions have none
            margin=None if entry.get("margin") is None else float(entry["margin"]),
            text=entry.get("text"),
            top_texts=tuple(entry.get("top_texts", ())),
        )
        for entry, top in zip(values, tops, strict=True)
    )


def prompt_logprobs_from(values: Any) -> tuple[TokenLogprob | None, ...]:
    """The same of a prompt, whose first token has none."""
    return tuple([None if entry is None else logprobs_from([entry])[0] for entry in values])


def _options_from(values: Any) -> GenerationOptions:
    """The options of plain data; those of a job's rows are few, and are read once."""
    try:
        data = marshal.dumps(values, 2)  # much faster than JSON, and different for 1 and true
    except ValueError:  # no plain data
        return options_from(values)
    return _options_of(data)


@functools.lru_cache(maxsize=1024)
def _options_of(data: bytes) -> GenerationOptions:
    return options_from(marshal.loads(data))  # noqa: S302 - which this process wrote


_READ: Mapping[str, Callable[[Any], Any]] = {
    "id": str,
    "finish": Finish,
    "options": _options_from,
    "tried": lambda errors: tuple(error_from(error) for error in errors),
    "previous": lambda result: _read(result, GenerationResult),
    "samples": lambda samples: tuple(_read(sample, GenerationResult) for sample in samples),
    "rounds": lambda rounds: tuple(
        _read(round_values, GenerationResult) for round_values in rounds
    ),
    "failed_samples": lambda failed: tuple(
        (entry["sample"], error_from(entry["error"])) for entry in failed
    ),
    "logprobs": logprobs_from,
    "prompt_logprobs": prompt_logprobs_from,
    "margin": float,
    "image_grid_thw": lambda grids: tuple(None if grid is None else tuple(grid) for grid in grids),
    "prompt_token_ids": tuple,
    "token_ids": tuple,
    "mask": tuple,
    "images": lambda images: tuple(map(_source_from, images)),
    "forced": tuple,
    "image_digests": tuple,
    "video_times": lambda videos: tuple(tuple(map(float, times)) for times in videos),
    "trimmed_by": tuple,
    "tool_calls": freeze,
    "written_transcript": freeze,
    "logprob": float,
    "token_logprobs": lambda logprobs: tuple(map(float, logprobs)),
    "likeliest": lambda pairs: tuple((token_id, float(logprob)) for token_id, logprob in pairs),
}
"""How fields are read whose type JSON does not have."""
_READ_OF_ROLLOUTS = {**_READ, "logprobs": lambda logprobs: tuple(map(float, logprobs))}


_REQUIRED: Mapping[type[Any], tuple[str, ...]] = {
    kind: tuple(
        f.name
        for f in dataclasses.fields(kind)
        if f.default is f.default_factory is dataclasses.MISSING
    )
    for kind in (GenerationResult, Scored, Rollout)
}


_WORDS: Mapping[type[Any], str] = {
    GenerationResult: "result",
    Scored: "score",
    Rollout: "rollout",
}


_NOT_IN_BRIEF = ["raw_text", "options"]


def _read(values: Mapping[str, Any], kind: type[T]) -> T:
    missing = [name for name in _REQUIRED[kind] if name not in values]
    if missing:
        raise InvalidField(
            f"a {_WORDS[kind]} takes {', '.join(missing)} too"
            + (": a brief line is not read back" if missing == _NOT_IN_BRIEF else "")
        )
    fields: dict[str, Any] = dict(values)
    reads = _READ_OF_ROLLOUTS if kind is Rollout else _READ
    if "transcript" in fields and kind is GenerationResult:
        fields["written_transcript"] = fields.pop("transcript")
    for name, value in list(fields.items()):
        if value is not None and name in reads:
            try:
                fields[name] = reads[name](value)
            except InvalidField:
                raise
            except (KeyError, TypeError, ValueError) as refusal:
                raise InvalidField(
                    f"{name} does not have the form of a {_WORDS[kind]}'s: {refusal}"
                ) from None
    return kind(**fields)


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
    values: Mapping[str, Any], number: int, what: str = "row"
) -> tuple[LineId, Slot[GenerationRequest]]:
    """The request of plain data, or `InvalidRequest`, with its id: its number where it has none.

    >>> request_from_row({"id": 1.5, "prompt": "Hi"}, 3)
    ('3', <Failure: row 3: id takes a string that is not empty or a whole number, not 1.5 (hint: ...)>)
    """
    row_id = values.get("id")
    if not (row_id is None or type(row_id) is int or (type(row_id) is str and row_id)):
        return str(number), Failure(
            InvalidRequest(
                f"{what} {number}: id takes a string that is not empty or a whole number, not"
                f" {row_id!r:.200}"
            )
        )
    name = str(number) if row_id is None else row_id
    return name, request_from({**values, "id": str(name)}, f"{what} {number}")


def values_of_line(line: Line) -> Slot[dict[str, Any]]:
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
