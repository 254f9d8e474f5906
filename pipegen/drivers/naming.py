"""The request at which a stage raised, in the note that the exception of a bug has (see
`pipegen.core.error_notes`).
"""

from __future__ import annotations

from typing import Any

from pipegen.core.error_notes import named
from pipegen.core.slots import Batch, Slot
from pipegen.records.frozen import printed
from pipegen.records.messages import TextPart
from pipegen.records.requests import GenerationRequest

_BEGINNING = 60
"""Characters of a prompt that are shown."""


def name_bug(raised: Exception, batch: Batch[Any]) -> None:
    """Give an exception of a stage the name of its request in this batch."""
    named(
        raised,
        lambda row: (
            f"one of {len(batch)} requests" if row is None else request_words(batch[row], row)
        ),
    )


def request_words(slot: Slot[Any], index: int | None = None) -> str:
    """A request by its id; by its index, where that is known, and the beginning of its prompt,
    where it has no id.

    >>> from returns.result import Success
    >>> (
    ...     request_words(Success(GenerationRequest(id="T-1", prompt="Hi"))),
    ...     request_words(Success(GenerationRequest(prompt="Hi")), 3),
    ... )
    ("request 'T-1'", "request 3 ('Hi')")
    """
    request = slot.value_or(None)
    if not isinstance(request, GenerationRequest):
        return "the request" if index is None else f"request {index}"
    if request.id is not None:
        return f"request {printed(request.id)}"
    return f"{'the request' if index is None else f'request {index}'} ({_beginning(request)})"


def _beginning(request: GenerationRequest) -> str:
    if request.prompt_token_ids is not None:
        return f"ids {', '.join(map(str, request.prompt_token_ids[:8]))}{', ...' if len(request.prompt_token_ids) > 8 else ''}"
    texts = (
        [request.prompt or ""]
        if request.messages is None
        else [_text(message.content) for message in request.messages if message.role == "user"]
    )
    text = next((text for text in reversed(texts) if text), "")
    return repr(text[:_BEGINNING] + ("..." if len(text) > _BEGINNING else ""))


def _text(content: Any) -> str:
    return (
        content
        if isinstance(content, str)
        else " ".join(part.text for part in content or () if isinstance(part, TextPart))
    )
