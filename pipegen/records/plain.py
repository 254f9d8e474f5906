"""Requests from plain data, such as parsed JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from returns.result import Failure, Success

from pipegen.core.border import Raised, guard_slot
from pipegen.core.errors import InvalidRequest
from pipegen.core.functional import without_none
from pipegen.core.slots import Slot
from pipegen.records.fields import InvalidField, printed
from pipegen.records.options import options_from
from pipegen.records.requests import FIELDS, GenerationRequest, ScoringRequest, TextGenerationRequest, VlmGenerationRequest, field_hint

__all__ = ["Request", "request_from", "unreadable"]

Request: TypeAlias = GenerationRequest | Mapping[str, Any] | Slot[GenerationRequest]
"""What the drivers accept: a record, plain data of the same shape (checked in its own slot), or a slot, which may have failed already."""


def request_from(values: Mapping[str, Any], where: str = "request") -> Slot[GenerationRequest]:
    """A request from plain data: `{"id", "messages" | "prompt" | "prompt_token_ids", "images", "tools", "options"}`; with a `continuation`, one to score.

    Anything wrong with it is an `InvalidRequest` whose message begins with `where`.

    >>> request_from({"messages": []}).failure().message
    'request: messages takes at least one message, not []'
    >>> request_from({"prompt": "a", "options": {"temprature": 1}}).failure().message
    "request: options: there is no option 'temprature'; did you mean 'temperature'?"
    """
    return guard_slot(lambda: _request_from(values, where), lambda raised: unreadable(where, raised))


def unreadable(where: str, raised: Raised) -> InvalidRequest:
    return InvalidRequest(f"{where}: it cannot be read: {raised.words}", incident=raised.incident)


def _request_from(values: Mapping[str, Any], where: str) -> Slot[GenerationRequest]:
    if not isinstance(values, Mapping):
        return Failure(InvalidRequest(f"{where}: a mapping or a request is wanted, not {printed(values)}"))
    if not _FIELDS.keys() >= values.keys():
        unknown = next(name for name in values if name not in _FIELDS)
        return Failure(InvalidRequest(f"{where}: there is no field {printed(unknown)}{field_hint(str(unknown))}"))
    fields = without_none(values)
    try:
        if isinstance(fields.get("options"), Mapping):
            fields["options"] = options_from(fields["options"])
        none = isinstance(fields.get("images", ()), (list, tuple)) and not fields.get("images")
        images = not none or _holds_images(fields.get("messages"))
        kind = ScoringRequest if "continuation" in fields else VlmGenerationRequest if images else TextGenerationRequest
        if not images:
            fields.pop("images", None)
        return Success(kind(**fields))
    except InvalidField as refusal:
        message = str(refusal).removeprefix("TextGenerationRequest.").removeprefix("VlmGenerationRequest.").removeprefix("ScoringRequest.")
        return Failure(InvalidRequest(f"{where}: {message}"))


_FIELDS = dict.fromkeys(FIELDS)


def _holds_images(messages: Any) -> bool:
    if not isinstance(messages, (list, tuple)):
        return False
    contents = [message.get("content") for message in messages if isinstance(message, Mapping)]
    parts = [part for content in contents if isinstance(content, (list, tuple)) for part in content]
    return any(isinstance(part, Mapping) and part.get("type") in ("image", "image_url") for part in parts)
