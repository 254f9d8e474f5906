"""The request at which a stage raised: it is in the note that the exception of a bug has (see
`pipegen.core.error_notes`). Where bugs are isolated, the requests of a batch are run again in halves,
so that the bug fails one of them alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from returns.result import Failure

from pipegen.core.distribution import MissingExtra
from pipegen.core.error_notes import StageNote, engine_of, named, note_of
from pipegen.core.errors import (
    BackendFailed,
    ContractError,
    GenerationError,
    InternalError,
    StageFailed,
)
from pipegen.core.foreign_calls import attempt, report
from pipegen.core.slots import Batch, Slot, is_ok
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


def request_words(slot: Slot[object], index: int | None = None) -> str:
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


def isolated(
    run: Callable[[Batch[Any]], Batch[Any]], batch: Sequence[Slot[object]], bug: Exception
) -> Batch[Any]:
    """The slots of requests of which a bug raised in the `run` of all. They are run again in
    halves, down to the one that raises, which fails.

    It fails with `StageFailed` for a bug in a stage of the user's, and with `BackendFailed` for one
    in an engine of the user's. Any other is `InternalError`. A package that is missing is no bug of
    a request: that comes through.
    """
    if len(batch) == 1:
        named(bug, lambda _: request_words(batch[0]))
        return (Failure(error_of(bug)),)
    half = len(batch) // 2
    return tuple(slot for part in (batch[:half], batch[half:]) for slot in _again(run, part))


def _again(run: Callable[[Batch[Any]], Batch[Any]], batch: Sequence[Slot[object]]) -> Batch[Any]:
    outcome = attempt(lambda: run(tuple(batch)))
    if is_ok(outcome):
        return outcome.unwrap()
    if isinstance(outcome.failure(), MissingExtra):
        raise outcome.failure()
    return isolated(run, batch, outcome.failure())


def error_of(bug: Exception) -> GenerationError:
    """The error of the one request at which the bug raises. The log has its traceback."""
    raised, note, engine = report(bug), note_of(bug), engine_of(bug)
    if engine:
        return BackendFailed(
            f"the engine {engine!r} raised {raised.words}",
            backend=engine,
            scope="row",
            lasting=True,
            hint="correct the engine; the log has the traceback under the incident",
            incident=raised.incident,
        )
    if note is None or note.internal:
        return InternalError(f"pipegen has a bug: {raised.words}", incident=raised.incident)
    return StageFailed(
        f"the stage {note.stage!r} raised {raised.words}",
        stage=note.stage,
        hint=_hint(note, bug),
        incident=raised.incident,
    )


def _hint(note: StageNote, bug: Exception) -> str:
    if isinstance(bug, ContractError):
        return "correct the stage; the message says what is expected of it"
    if not note.advice:
        return "correct the stage; the log has the traceback under the incident"
    return f"correct the stage, or {note.advice}"
