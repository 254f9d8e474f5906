"""Requests from plain data, such as parsed JSON."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from typing import Any, TypeAlias

from returns.result import Failure, Success

from pipegen.core.errors import InvalidRequest
from pipegen.core.foreign_calls import Raised, guard_result
from pipegen.core.names import nearest
from pipegen.core.slots import Slot
from pipegen.records import strict_json
from pipegen.records.fields import InvalidField
from pipegen.records.frozen import plain_list, plain_number, printed
from pipegen.records.option_table import OPTIONS
from pipegen.records.options import options_from
from pipegen.records.request_forms import as_messages, read_keys, refused_entry
from pipegen.records.requests import (
    FIELDS,
    MESSAGES,
    GenerationRequest,
    ScoringRequest,
    TextGenerationRequest,
    VlmGenerationRequest,
    field_hint,
    misplaced,
    unread_media,
)
from pipegen.records.table_nulls import without_table_nulls

__all__ = ["Request", "carried", "request_from", "unreadable"]

Request: TypeAlias = GenerationRequest | Mapping[str, Any] | Slot[GenerationRequest]
"""What the drivers accept: a record, plain data of the same shape (checked in its own slot), or a
slot, which may have failed already.
"""


def request_from(values: Mapping[str, Any], where: str = "request") -> Slot[GenerationRequest]:
    """A request from plain data: `{"id", "messages" | "prompt" | "prompt_token_ids", "images" |
    "image", "videos" | "video", "tools", "options", "metadata", "continues", "turns"}`.

    With a `continuation`, it is a request to score.

    So a row of a table, of a data set or of pandas is a request. `id` may be a whole number. `messages`,
    `tools`, `turns` and `options` may be JSON text, the first two lists of JSON texts too. Other
    programs' forms are read too: `pipegen.records.request_forms` has their table. Other columns, such
    as a label, become entries of `metadata`. What the model should see or obey, and is not read, is
    refused. Anything wrong is an `InvalidRequest` whose message begins with `where`.

    >>> request_from({"messages": []}).failure().message
    'request: messages takes at least one message, not []'
    >>> request_from({"prompt": "a", "options": {"temprature": 1}}).failure().message
    "request: options: there is no option 'temprature'; did you mean 'temperature'?"
    >>> request_from({"id": 7, "prompt": "Is it so?", "label": True}).unwrap().metadata["label"]
    True
    """
    return guard_result(
        lambda: _request_from(values, where), lambda raised: unreadable(where, raised)
    )


def unreadable(where: str, raised: Raised) -> InvalidRequest:
    return InvalidRequest(f"{where}: it cannot be read: {raised.words}", incident=raised.incident)


def _request_from(values: Any, where: str) -> Slot[GenerationRequest]:
    values = _row_of(values)
    if not isinstance(values, Mapping):
        return Failure(
            InvalidRequest(
                f"{where}: a mapping or a request is wanted, not {printed(values)}",
                hint=_ALONE if type(values).__module__.startswith("pipegen.") else _SHAPES,
            )
        )
    try:
        fields = _fields_of(values)
        if isinstance(fields.get("options"), Mapping):
            fields["options"] = options_from(fields["options"])
        beside = any(
            not isinstance(fields[name], (list, tuple)) or fields[name]
            for name in _MEDIA & fields.keys()
        )
        images = (
            beside or _holds_images(fields.get("messages")) or _holds_images(fields.get("turns"))
        )
        kind = (
            ScoringRequest
            if "continuation" in fields
            else VlmGenerationRequest
            if images
            else TextGenerationRequest
        )
        if not images:
            _refuse_unread_media(values)
            for name in _MEDIA:
                fields.pop(name, None)
        return Success(kind(**fields))
    except InvalidField as refusal:
        message = (
            str(refusal)
            .removeprefix("TextGenerationRequest.")
            .removeprefix("VlmGenerationRequest.")
            .removeprefix("ScoringRequest.")
        )
        return Failure(InvalidRequest(f"{where}: {message}"))


def _row_of(values: Any) -> Any:
    """A row of pandas (`iterrows`, `itertuples`) as a mapping. Anything else stays as it is. A
    missing value is None.
    """
    entries = (
        getattr(values, "_asdict", None)
        if isinstance(values, tuple)
        else getattr(values, "to_dict", None)
        if getattr(values, "ndim", None) == 1
        else None
    )
    if not callable(entries):
        return values
    row: Any = entries()
    return {str(name): None if _is_missing(value) else value for name, value in row.items()}


def _is_missing(value: Any) -> bool:
    number = plain_number(value)
    return type(value).__name__ in ("NAType", "NaTType") or (
        type(number) is float and number != number
    )


_SHAPES = (
    'a request is a mapping such as {"prompt": "..."} or {"messages": [{"role": "user", "content":'
    ' "..."}]}'
)
_ALONE = (
    "stages run alone, on the records between them, with stages.apply((pg.Success(record),));"
    " result.then(...) makes the request of the next turn"
)
_MEDIA = {"images", "videos"}
_JSON = {"messages", "tools", "options", "prompt_token_ids", "continues", "turns"}
"""The fields that may be JSON text."""
_JSON_LISTS = {"messages", "tools"}
"""The fields that may be lists of JSON texts."""
_FIELDS = dict.fromkeys((*FIELDS, "image", "video"))
_PROMPTS = (
    *("messages", "prompt", "prompt_token_ids", "turns"),
    *("conversations", "conversation", "query"),
)


def carried(values: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of plain data that are the caller's own: its `metadata`, and what is no field of
    a request. Null is a value too.

    >>> carried({"prompt": "Is it so?", "label": None, "metadata": {"page": 7}})
    {'label': None, 'page': 7}
    """
    metadata, read = values.get("metadata"), read_keys(values)
    others = {
        name: value for name, value in values.items() if name not in _FIELDS and name not in read
    }
    return (
        others
        if metadata is None
        else {**others, **(metadata if isinstance(metadata, Mapping) else {"metadata": metadata})}
    )


def _fields_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a request, with those of a table's row as the record takes them.

    Raises `InvalidField` for an entry that would be an option, and for a mistyped one: it would be
    ignored.
    """
    fields = {
        name: value for name, value in values.items() if value is not None and name in _FIELDS
    }
    metadata = carried(values) if len(fields) < len(values) or "metadata" in fields else None
    if metadata:
        _refuse_misplaced(
            {
                name: value
                for name, value in values.items()
                if name in metadata and name not in _FIELDS and value is not None
            },
            prompted=not (fields.keys() | read_keys(values)).isdisjoint(_PROMPTS),
        )
        fields["metadata"] = metadata
    row_id = plain_number(fields.get("id"))
    if type(row_id) is int:
        fields["id"] = str(row_id)
    for singular, plural in (("image", "images"), ("video", "videos")):
        if singular in fields:
            if plural in fields:
                raise InvalidField(f"a request takes {singular} or {plural}, not both")
            value = plain_list(fields.pop(singular))
            fields[plural] = value if isinstance(value, (list, tuple)) else _images_of(value)
    for name, value in fields.items():
        if name in _JSON and isinstance(value, str):
            fields[name] = () if name == "tools" and not value else _from_text(name, value)
        elif name in _JSON_LISTS and isinstance(value, (list, tuple)):
            fields[name] = [strict_json.loaded(entry, dict) for entry in value]
        elif name in _MEDIA and _is_one(value):
            fields[name] = _images_of(value)
    fields = as_messages(fields, values)
    return without_table_nulls(fields) if "tools" in fields else fields


def _refuse_misplaced(values: Mapping[str, Any], *, prompted: bool) -> None:
    """Refuse names that are options, or nearly, what holds options under nearly their name, and
    what other programs obey; where there is no prompt, also names that are nearly a field's.
    """
    for name, value in values.items():
        hint = misplaced(str(name))
        if isinstance(value, Mapping) and not OPTIONS.keys().isdisjoint(value):
            hint = hint or nearest(str(name).lower(), ("options",)) or None
        if hint is None and (other := refused_entry(str(name), value)) is not None:
            hint = _or_metadata(other)
        if hint is None and not prompted:
            hint = field_hint(str(name)) or None
        if hint is not None:
            raise InvalidField(f"there is no field {printed(name)}{hint}")


def _or_metadata(hint: str) -> str:
    rest = "put it into metadata if the model is not to see it"
    return f"{hint} {rest.capitalize()}" if hint.endswith("?") else f"{hint}; {rest}"


def _refuse_unread_media(values: Mapping[str, Any]) -> None:
    """Refuse what by its name holds images, of a request that has none: they would be carried along
    beside a question about them.
    """
    for name, value in values.items():
        if name not in _FIELDS and isinstance(value, (str, bytes, Mapping, list, tuple)) and value:
            hint = unread_media(str(name))
            if hint is not None:
                raise InvalidField(f"there is no field {printed(name)}{_or_metadata(hint)}")


def _from_text(name: str, text: str) -> Any:
    try:
        return strict_json.load(text)
    except strict_json.NotStrict as refusal:
        form = (
            f"messages takes a list of messages such as {MESSAGES}, with prompt for a plain text,"
            f" not {printed(text)}; "
            if name == "messages"
            else ""
        )
        raise InvalidField(f"{form}{name}, where it is text, takes JSON: {refusal}") from None


def _is_one(value: Any) -> bool:
    """Whether it is one image or video in the place of a list."""
    if isinstance(value, (str, bytes, Mapping)):
        return bool(value)
    return isinstance(value, (os.PathLike, io.BytesIO)) or hasattr(value, "getexif")


def _images_of(value: Any) -> Any:
    """One image in the place of a list, or a JSON list as text."""
    if isinstance(value, str) and value.startswith("[") and value.endswith("]"):
        try:
            return strict_json.load(value)
        except strict_json.NotStrict:
            pass  # a path may have brackets
    return [value]


def _holds_images(messages: Any) -> bool:
    messages = plain_list(messages)
    if not isinstance(messages, (list, tuple)):
        return False
    for message in messages:
        content = plain_list(message.get("content")) if isinstance(message, Mapping) else None
        if isinstance(content, (list, tuple)) and any(map(_is_image, content)):
            return True
    return False


def _is_image(part: Any) -> bool:
    kinds = ("image", "image_url", "video", "video_url")
    return isinstance(part, Mapping) and part.get("type") in kinds
