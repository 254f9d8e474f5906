"""Requests from plain data, such as parsed JSON."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Mapping
from typing import Any, TypeAlias

from immutabledict import immutabledict
from returns.result import Failure, Success

from pipegen.core.errors import InvalidRequest
from pipegen.core.foreign_calls import Raised, guard_result
from pipegen.core.names import InvalidField
from pipegen.core.slots import Slot
from pipegen.records import strict_json
from pipegen.records.fields import checks_of
from pipegen.records.frozen import freeze, plain_id, plain_list, plain_number, printed
from pipegen.records.option_table import OPTIONS
from pipegen.records.options import options_from
from pipegen.records.request_forms import (
    KEYS,
    as_messages,
    json_text,
    metadata_of,
    read_keys,
    refused_entry,
)
from pipegen.records.requests import (
    FIELDS,
    GenerationRequest,
    ScoringRequest,
    TextGenerationRequest,
    VlmGenerationRequest,
    field_hint,
    holds_options,
    misplaced,
    unread_media,
)

Request: TypeAlias = GenerationRequest | Mapping[str, Any] | Slot[GenerationRequest]
"""What the drivers accept: a record, plain data of the same shape (checked in its own slot), or a
slot, which may have failed already.
"""


def request_from(values: Mapping[str, object], where: str = "request") -> Slot[GenerationRequest]:
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


def _request_from(values: object, where: str) -> Slot[GenerationRequest]:
    values = _row_of(values)
    if not isinstance(values, Mapping):
        return Failure(
            InvalidRequest(
                f"{where}: a mapping or a request is wanted, not {printed(values)}",
                hint=_ALONE if type(values).__module__.startswith("pipegen.") else _SHAPES,
            )
        )
    try:
        return Success(_parsed(values))
    except InvalidField as refusal:
        message = re.sub(r"\A(TextGeneration|VlmGeneration|Scoring)Request\.", "", str(refusal))
        message = re.sub(_NO_OPTIONS, _CHOICES, message)
        return Failure(InvalidRequest(f"{where}: {message}"))


# data sets have the choices of a question there
_NO_OPTIONS = r"(?s)\Aoptions(: there is no option [^;]*| takes .*|, where it is text, .*)\Z"
_CHOICES = (
    r"\g<0>; the choices of a question go into metadata if the model is not to see them, of a file"
    " with --map metadata=options"
)


def _parsed(values: Mapping[str, object]) -> GenerationRequest:
    """The record: each entry is read once, and what the record lacks is refused or carried along.
    Raises `InvalidField`.
    """
    given = {name: value for name, value in values.items() if value is not None and name in _FIELDS}
    fields: dict[str, Any] = {}
    for name, value in given.items():
        plural = _PLURALS.get(name, name)
        if plural != name and plural in given:
            raise InvalidField(f"a request takes {name} or {plural}, not both")
        entry = _entry(name, value)
        if plural not in _MEDIA or not isinstance(entry, (list, tuple)) or entry:
            fields[plural] = entry
    others = _others(values) if len(given) < len(values) else {}
    held = fields.get("metadata")
    metadata = _joined(others, held) if others else metadata_of(held)
    if metadata:
        fields["metadata"] = metadata
    fields = as_messages(fields, values)
    if "tools" in fields:
        fields = without_table_nulls(fields)
    images = not _MEDIA.isdisjoint(fields)
    for name in _CONVERSATION:
        if name in fields:
            try:
                fields[name] = _CHECKS[name](fields[name])
            except ValueError:  # the record says what is wrong
                continue
            images = images or any(message.sources for message in fields[name])
    prompted = not others or not (given.keys() | read_keys(values)).isdisjoint(_PROMPTS)
    for name, value in others.items():
        hint = value is not None and _hint(str(name), value, prompted=prompted, images=images)
        if hint:
            raise InvalidField(f"there is no field {printed(name)}{hint}")
    kind = VlmGenerationRequest if images else TextGenerationRequest
    return (ScoringRequest if "continuation" in fields else kind)(**fields)


def _row_of(values: object) -> Any:
    """A row of pandas as a mapping, whose missing values are None. Anything else stays as it is,
    but that a field of a mapping which pandas has no value for (`to_dict("records")`) is None.
    """
    if isinstance(values, Mapping):
        missing = [name for name in values if name in _READ and _is_missing(values[name])]
        return {**values, **dict.fromkeys(missing)} if missing else values
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


def _is_missing(value: object) -> bool:
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
_PLURALS = {"image": "images", "video": "videos"}
_MEDIA = frozenset(_PLURALS.values())
_CONVERSATION = ("messages", "turns")
_CHECKS = checks_of(GenerationRequest)
_JSON = {"messages", "tools", "options", "prompt_token_ids", "continues", "turns"}
"""The fields that may be JSON text."""
_JSON_LISTS = {"messages", "tools"}
"""The fields that may be lists of JSON texts."""
_FIELDS = frozenset((*FIELDS, *_PLURALS))
_READ = _FIELDS.union(KEYS)
_PROMPTS = (
    *("messages", "prompt", "prompt_token_ids", "turns"),
    *("conversations", "conversation", "query"),
)


def has_media(values: Mapping[str, object]) -> bool:
    """Whether plain data has an image or a video beside its words: an empty list has none.

    >>> has_media({"images": ["a.png"]}), has_media({"images": "[]", "video": None})
    (True, False)
    """
    given = {name: values.get(name) for name in (*_PLURALS, *_MEDIA)}
    entries = [
        _entry(name, value)
        for name, value in given.items()
        if value is not None and not _is_missing(value)
    ]
    return any(not isinstance(entry, (list, tuple)) or entry for entry in entries)


def carried(
    values: Mapping[str, object], aside: Mapping[str, object] = immutabledict()
) -> dict[str, Any]:
    """The entries of plain data that are the caller's own: its `metadata`, and what is no field of
    a request. Null is a value too. An entry beside the metadata whose name is another value's there
    gets `input_` before it.

    aside: entries that are the caller's own whatever their names.

    >>> carried({"prompt": "Is it so?", "label": None, "metadata": {"page": 7}})
    {'label': None, 'page': 7}
    >>> carried({"label": 1, "metadata": {"label": 2}}, {"seed": 5})
    {'input_label': 1, 'seed': 5, 'label': 2}
    """
    return _joined({**_others(values), **aside}, values.get("metadata"))


def _joined(aside: Mapping[str, object], held: object) -> dict[str, Any]:
    entries = metadata_of(held)
    joined = dict[str, Any]()
    for name, value in aside.items():
        key = name
        while (key in entries and not _is_same(value, entries[key])) or (
            key != name and key in aside
        ):
            key = f"input_{key}"
        joined[key] = value
    return {**joined, **entries}


def _is_same(value: object, held: object) -> bool:
    """Whether an entry says no more than another, as far as plain values tell: arrays compare
    otherwise.
    """
    plain = type(value) is type(held) and type(value) in (str, int, float, bool)
    return value is None or (plain and value == held)


def _others(values: Mapping[str, object]) -> dict[str, Any]:
    """The entries that are no field of a request, in its own form or in another."""
    read = read_keys(values)
    return {
        name: value for name, value in values.items() if name not in _FIELDS and name not in read
    }


def _entry(name: str, value: object) -> Any:
    """The value of a field, which may be in the form that tables have it in."""
    if name == "id":
        number = plain_id(value)
        return str(number) if type(number) is int else value
    if name in _PLURALS or name in _MEDIA:
        value = strict_json.loaded(value, list) if isinstance(value, str) else plain_list(value)
        alone = not isinstance(value, (list, tuple)) and (name in _PLURALS or _is_one(value))
        return [value] if alone else value
    if name in _JSON and isinstance(value, str):
        value = () if name == "tools" and not value else json_text(name, value)
    elif name in _JSON_LISTS and isinstance(value, (list, tuple)):
        value = [strict_json.loaded(entry, dict) for entry in value]
    return options_from(value) if name == "options" and isinstance(value, Mapping) else value


def _hint(name: str, value: object, *, prompted: bool, images: bool) -> str:
    """Why an entry that is no field is refused; empty where it is carried along.

    Refused are names that are options, or nearly, what holds options under nearly their name, and
    what other programs obey; without a prompt, names that are nearly a field's; without images,
    names of what holds some.
    """
    has_data = isinstance(value, (str, bytes, Mapping, list, tuple)) and bool(value)
    return (
        _or_metadata(misplaced(name) or refused_entry(name, value))
        or ("; did you mean 'options'?" if holds_options(name) and _has_options(value) else "")
        or ("" if prompted else field_hint(name))
        or _or_metadata(unread_media(name) if has_data and not images else None)
    )


def _has_options(value: object) -> bool:
    """Whether a value, or its JSON text, is a mapping with options."""
    value = strict_json.loaded(value, dict)
    return isinstance(value, Mapping) and not OPTIONS.keys().isdisjoint(value)


def _or_metadata(hint: str | None) -> str:
    rest = "put it into metadata if the model is not to see it"
    if hint is None:
        return ""
    return f"{hint} {rest.capitalize()}" if hint.endswith("?") else f"{hint}; {rest}"


def _is_one(value: object) -> bool:
    """Whether it is one image or video in the place of a list."""
    if isinstance(value, (str, bytes, Mapping)):
        return bool(value)
    return isinstance(value, (os.PathLike, io.BytesIO)) or hasattr(value, "getexif")


def without_table_nulls(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a request without such nulls. One property that is null shows that the tools
    are of a table; then all entries of theirs that are null go.

    A struct of a table has the keys of all its rows, with null where a row has none. Libraries give
    such rows to Python as plain dicts, which do not say who made a null. Two kinds are sure: a schema
    has no property that is null, and a call no argument that its tool does not know and that is null.

    >>> tool = {"function": {"name": "look", "parameters": {"properties": {"a": {}, "b": None}}}}
    >>> call = {"function": {"name": "look", "arguments": {"a": None, "b": None}}}
    >>> fields = {"tools": [tool], "messages": [{"role": "assistant", "tool_calls": [call]}]}
    >>> clean = without_table_nulls(fields)
    >>> clean["tools"][0]["function"]["parameters"]
    {'properties': {'a': {}}}
    >>> clean["messages"][0]["tool_calls"][0]["function"]["arguments"]
    {'a': None}
    >>> bare = {"messages": [{"tool_calls": [{"function": {"name": "look"}}]}]}
    >>> without_table_nulls({**fields, **bare})["messages"] == bare["messages"]
    True
    """
    tools = fields.get("tools")
    if not isinstance(tools, (list, tuple)) or not tools:
        return fields
    try:
        tools = freeze(tools)  # which bounds their depth and size
    except ValueError:  # the record says what is wrong
        return fields
    if any(map(_has_null_property, tools)):
        tools = tuple(map(_dense, tools))
        fields = {**fields, "tools": tools}
    properties = {
        function.get("name"): _mapping(_mapping(function.get("parameters")).get("properties"))
        for function in (_mapping(_mapping(tool).get("function", tool)) for tool in tools)
    }
    messages = fields.get("messages")
    if isinstance(messages, (list, tuple)):
        fields = {**fields, "messages": [_of_message(turn, properties) for turn in messages]}
    return fields


def _has_null_property(value: object) -> bool:
    if isinstance(value, Mapping):
        properties = value.get("properties")
        if isinstance(properties, Mapping) and None in properties.values():
            return True
        return any(map(_has_null_property, value.values()))
    return isinstance(value, tuple) and any(map(_has_null_property, value))


def _dense(value: object) -> object:
    if isinstance(value, Mapping):
        return {name: _dense(entry) for name, entry in value.items() if entry is not None}
    return tuple(map(_dense, value)) if isinstance(value, tuple) else value


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _of_message(message: Any, properties: Mapping[Any, Mapping[str, object]]) -> object:
    calls = _mapping(message).get("tool_calls")
    if not isinstance(calls, (list, tuple)):
        return message
    return {**message, "tool_calls": [_of_call(call, properties) for call in calls]}


def _of_call(call: Any, properties: Mapping[object, Mapping[str, object]]) -> object:
    function = _mapping(call).get("function")
    arguments = _mapping(_mapping(function).get("arguments"))
    known = properties.get(_mapping(function).get("name"))
    if not known or not arguments:
        return call
    own = {name: entry for name, entry in arguments.items() if entry is not None or name in known}
    return {**call, "function": {**_mapping(function), "arguments": own}}
