"""The codec: records as plain data and back, by what they declare.

For a line of a file of results, `pipegen.io.jsonl` adds `id` and `ok` to the data, and
`strict_json.dump` makes the text. Requests are read by `pipegen.records.parse_request`.

The type of a field says how its values are written and read. Its `FieldRow` names it in lines and
tables, or keeps it out of them. So a field is added to a record in one place. NaN
and infinities are written as strings. What is read is checked as any record is, and a field that
the record does not have is refused.

>>> from pipegen.records.scores import Scored
>>> scored = Scored(
...     logprob=-1.0, token_logprobs=(-1.0,), token_ids=(7,), greedy=True, tokens=1, bytes=2
... )
>>> encode(scored)["token_logprobs"], decode(encode(scored), Scored) == scored
([-1.0], True)
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import marshal
import operator
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from pipegen.core import errors
from pipegen.core.errors import GenerationError
from pipegen.core.functional import without_none
from pipegen.core.names import InvalidField, nearest
from pipegen.records import strict_json
from pipegen.records.fields import FieldRow, UnknownField, metadata_of
from pipegen.records.frozen import freeze
from pipegen.records.messages import ImageSource, VideoSource
from pipegen.records.option_records import GenerationOptions
from pipegen.records.options import flat_values, options_from

T = TypeVar("T")
_NULL = frozenset((NoneType,))
_SURE = frozenset((int, str, bool)) | _NULL
"""The types of plain fields' values that are written as they are."""
_NONE = dataclasses.MISSING
_UNREAD = (KeyError, OverflowError, TypeError, ValueError)
"""What reading a value of another form raises."""


class Declared(NamedTuple):
    """A field as its record declares it."""

    name: str
    key: str
    """Its name in lines and tables."""
    hint: Any
    """Its type, without None."""
    row: FieldRow
    default: object
    """`dataclasses.MISSING` where it has none."""
    nullable: bool
    """Whether it may be None."""


@functools.cache
def declared(kind: type) -> tuple[Declared, ...]:
    """The fields of a record that are written, in order."""
    hints, extras = get_type_hints(kind), metadata_of(kind)
    fields = [
        Declared(
            f.name,
            row.name or f.name,
            without_null(hint),
            row,
            f.default,
            NoneType in get_args(hint),
        )
        for f, hint in [(f, hints[f.name]) for f in dataclasses.fields(kind)]
        for row in [*(extra for extra in extras[f.name] if type(extra) is FieldRow), FieldRow()][:1]
        if row.written
    ]
    return tuple(fields)


def without_null(hint: object) -> Any:
    """A type without None; `object` for several types.

    >>> without_null(tuple[int, ...] | None), without_null(str | int | None)
    (tuple[int, ...], <class 'object'>)
    """
    if get_origin(hint) not in (Union, UnionType):
        return hint
    kinds = [kind for kind in get_args(hint) if kind is not NoneType]
    return kinds[0] if len(kinds) == 1 else object


def item_of(hint: object) -> Any:
    """What a tuple of any length holds, without None; None for other types."""
    args = get_args(hint)
    return without_null(args[0]) if get_origin(hint) is tuple and args[-1] is ... else None


def is_plain(hint: object) -> bool:
    """Whether JSON has the values of a type: words, numbers, and lists of these.

    >>> is_plain(tuple[int | None, ...]), is_plain(Literal["a"]), is_plain(ImageSource)
    (True, True, False)
    """
    inner = [part for part in get_args(hint) if part not in (..., NoneType)]
    if inner and get_origin(hint) is not Literal:
        return get_origin(hint) in (tuple, Union, UnionType) and all(map(is_plain, inner))
    return bool(inner) or hint in (str, int, bool, float, object)


def encode(record: object, *, brief: bool = False) -> dict[str, Any]:
    """A record as JSON data. `decode` reads it, but not if it is `brief`: that keeps what people
    read.
    """
    kind: Any = type(record)
    fields, values_of, omitted = _writes(kind, brief)
    values = {
        key: value if type(value) in sure else write(value)
        for (key, sure, write), value in zip(fields, values_of(record), strict=False)
    }
    for key in omitted:
        value = values[key]
        if not value and type(value) is not int:  # a stop may be the token 0
            del values[key]
    return values


@functools.cache
def _writes(kind: object, brief: bool) -> tuple[Any, Any, Any]:
    """What `encode` goes by: of each field its key, the types that are written as they are, and what
    writes the others; what gets the values; and the keys that are left out where they are empty.
    """
    fields: Sequence[Declared] = declared(kind)
    if brief:
        fields = [field for field in fields if field.row.brief] or [
            field for field in fields if field.row.brief is None
        ]
    writes = [(field, _writer(field.hint, brief)) for field in fields]
    return (
        [
            (
                field.key,
                _SURE if write is strict_json.plain else _NULL if field.nullable else (),
                write,
            )
            for field, write in writes
        ],
        # of one name alone it gives no tuple
        operator.attrgetter(*[field.row.source or field.name for field in fields], "__class__"),
        [
            field.key
            for field in fields
            if field.row.omit or (brief and field.row.brief and field.default is not _NONE)
        ],
    )


def _writer(hint: object, brief: bool) -> Read:
    """Writes a value that is none of `_SURE`."""
    item, form = item_of(hint), _form_of(hint)
    if form is None and dataclasses.is_dataclass(hint):
        return functools.partial(encode, brief=brief)
    if form is None and item is not None:
        write = _writer(item, brief)
        if write not in (strict_json.plain, strict_json.finite):
            return lambda values: [value if value is None else write(value) for value in values]
    return form[0] if form else strict_json.plain


def decode(values: Mapping[str, object], kind: type[T], **others: object) -> T:
    """The record that `encode` was given. Fields that are not written come from `others`, or have
    their default.

    Where the data is not of this form, or has another field, raises `InvalidField` for the records
    that lines are of. For others it may also raise `KeyError`, `TypeError` or `ValueError`.
    """
    record: Any = kind
    needed, made = _decoder(record)
    missing = [field.key for field in needed if field.key not in values]
    if missing and (word := word_of(kind)):
        unread = [field.key for field in needed if not field.row.brief]
        brief = ": a brief line is not read back" if missing == unread else ""
        raise InvalidField(f"a {word} takes {', '.join(missing)} too{brief}")
    if stray := _unwritten(record).intersection(values):
        raise UnknownField(f"a line of {kind.__name__} has no field {min(stray)!r}")
    result: T = made(**values, **others)
    return result


@functools.cache
def _unwritten(kind: Any) -> frozenset[str]:
    """The fields of a record that no line has."""
    names = {field.name for field in dataclasses.fields(kind) if field.init}
    return frozenset(names.difference(field.name for field in declared(kind)))


@functools.cache
def _decoder(kind: object) -> tuple[list[Declared], Callable[..., Any]]:
    """The fields without a default, and the function that makes the record of the entries of a
    line. It has no loop, as `_init_of` in `fields` has none: there is such a record for each token.
    """
    space: dict[str, Any] = {"_kind": kind, "_refused": _refused, "_UNREAD": _UNREAD}
    needed = [field for field in declared(kind) if field.default is _NONE]
    takes, lines = [field.key for field in needed], list[str]()
    for _, key, hint, _, default, _ in declared(kind):
        read = space[f"_read_{key}"] = _reader(hint)
        if default is not _NONE:
            space[f"_default_{key}"] = default
            takes.append(f"{key}=_default_{key}")
        if read is not None:
            lines.append(f"  if {key} is not None: _at = {key!r}; {key} = _read_{key}({key})")
    gives = ", ".join([f"{field.name}={field.key}" for field in declared(kind)])
    code = f"""def made(*, {", ".join(takes)}, **_others):
 try:
  _at = ""
{chr(10).join(lines)}
 except _UNREAD as refusal: raise _refused(_kind, _at, refusal) from None
 return _kind({gives}, **_others)"""
    exec(code, space)  # noqa: S102 - of the names of fields
    return needed, space["made"]


def _refused(kind: object, key: str, refusal: Exception) -> Exception:
    """The error for an entry that does not have the form of its field."""
    if isinstance(refusal, InvalidField) or not word_of(kind):
        return refusal
    return InvalidField(f"{key} does not have the form of a {word_of(kind)}'s: {refusal}")


def word_of(kind: object) -> str:
    """What messages call a record that lines are of; empty for others."""
    return getattr(kind, "_word", "")


def _reader(hint: object) -> Read | None:
    """Reads a value; None where it is as it stands."""
    item, form = item_of(hint), _form_of(hint)
    if form is None and isinstance(hint, type) and dataclasses.is_dataclass(hint):
        if word_of(hint):
            return functools.partial(decode, kind=hint)
        _, made = _decoder(hint)
        return lambda values: made(**values)
    if form is None and item is not None and (read := _reader(item)) is not None:
        if item is get_args(hint)[0]:
            return lambda values: tuple([read(value) for value in values])
        return lambda values: tuple([value if value is None else read(value) for value in values])
    return form[1] if form else tuple if get_origin(hint) is tuple else None


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


_ERRORS: Mapping[str, Any] = {
    kind.__name__: kind
    for kind in (getattr(errors, name) for name in errors.__all__)
    if issubclass(kind, GenerationError)
}


def error_from(values: object) -> GenerationError:
    """The error that `error_to_plain` was given. A null says nothing. Raises `InvalidField` for an
    unknown type or field, and for a value of another form.
    """
    if not isinstance(values, Mapping):
        raise InvalidField(f"error takes a mapping with a 'type', not {type(values).__name__}")
    fields = without_none(values)
    name = fields.pop("type", None)
    if not isinstance(name, str) or name not in _ERRORS:
        raise InvalidField(f"error.type takes one of {', '.join(_ERRORS)}, not {name!r:.200}")
    names = [field.name for field in declared(_ERRORS[name])]
    for unknown in fields.keys() - names:
        raise InvalidField(f"{name} has no field {unknown!r:.200}{nearest(unknown, names)}")
    try:
        error: GenerationError = decode(fields, _ERRORS[name])
    except _UNREAD as refusal:
        raise InvalidField(f"{name} does not have the form of an error: {refusal}") from None
    return error


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


def _source_from(value: object) -> ImageSource:
    if isinstance(value, Mapping):
        return VideoSource.of(value.get("video", value))
    return ImageSource.of(value)


def _as_text(source: ImageSource) -> str:
    if source.data is None:
        return source.path or source.url or ""
    return f"data:application/octet-stream;base64,{base64.b64encode(source.data).decode()}"


def options_to_plain(options: GenerationOptions) -> dict[str, Any]:
    """Options as JSON data: those that are set, by their flat names."""
    plain: dict[str, Any] = strict_json.plain(_set_options(options))
    return plain


@functools.lru_cache(maxsize=1024)  # the rows of a job have few distinct options
def _set_options(options: GenerationOptions) -> dict[str, object]:
    return without_none(flat_values(options))


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


Read = Callable[[Any], object]
Form = tuple[Read, Read]
_FORMS: Mapping[object, Form] = {
    float: (strict_json.finite, float),
    Mapping: (strict_json.plain, freeze),
    tuple[tuple[int, float], ...]: (
        strict_json.plain,
        lambda pairs: tuple([(token_id, float(logprob)) for token_id, logprob in pairs]),
    ),
    tuple[int, GenerationError]: (
        lambda failed: {"sample": failed[0], "error": error_to_plain(failed[1])},
        lambda failed: (failed["sample"], error_from(failed["error"])),
    ),
    GenerationOptions: (options_to_plain, _options_from),
    GenerationError: (error_to_plain, error_from),
    ImageSource: (image_to_plain, _source_from),
}
"""How values of these types are written, and read."""


def _form_of(hint: object) -> Form | None:
    """How values of a type are written and read that has a form of its own."""
    if isinstance(hint, type) and issubclass(hint, Enum):
        return operator.attrgetter("value"), hint
    return _FORMS.get(hint) or _FORMS.get(get_origin(hint))
