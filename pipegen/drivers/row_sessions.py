"""What the driver of any number of requests works on: requests on their way, and the sessions of
engines with the rows that they work on.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from enum import Enum, auto
from typing import Any, Generic, Protocol, TypeVar

from pipegen.core.backend import Session
from pipegen.core.interpreter import Row
from pipegen.core.pipe import Pipe
from pipegen.core.slots import Slot, is_ok
from pipegen.core.steps import Branch, Call, EngineRequest
from pipegen.engines.model import reader_of
from pipegen.records.messages import TextPart
from pipegen.records.requests import GenerationRequest
from pipegen.records.results import Encoded, ResolvedRequest

__all__ = [
    "KeptAnswers",
    "NoRequest",
    "OpenSession",
    "Request",
    "image_bytes",
    "in_order",
    "is_light",
]

FEW, SHORT = 8, 20_000
"""Requests, and characters or tokens of each, that are worked on within an event loop."""
K = TypeVar("K")
T = TypeVar("T")
K_contra = TypeVar("K_contra", contravariant=True)


class NoRequest(Enum):
    """What an input gives where it has no request."""

    NOW = auto()
    """None yet: `Drive.wake` is called when there may be one."""
    MORE = auto()
    """The input has ended."""


class KeptAnswers(Protocol[K_contra]):
    """Answers to calls that need not be asked for again."""

    def of(self, key: K_contra, row: Row, wanted: EngineRequest) -> Slot[Any] | None:
        """The answer to what this row wants; None where none is kept."""
        ...

    def keep(self, key: K_contra, row: Row, wanted: EngineRequest, slot: Slot[Any]) -> None:
        """Keep an answer: the request has not ended with it."""
        ...


class Request(Generic[K]):
    """A request on its way."""

    __slots__ = ("bug", "given", "key", "number", "slot")

    def __init__(self, key: K, given: Slot[GenerationRequest], number: int) -> None:
        self.key, self.given, self.number = key, given, number
        self.slot: Slot[Any] | None = None
        self.bug: Exception | None = None
        """What raises when its turn comes."""

    @property
    def ended(self) -> bool:
        return self.slot is not None or self.bug is not None


class OpenSession:
    """The session of an engine, the rows to be added next, and those that it works on, by their
    numbers in the session.
    """

    def __init__(self, backend: Any, session: Session, shown: bool) -> None:
        self.backend, self.session = backend, session
        self.shown = shown
        """Of the call of a batch: as in `EngineRequest`."""
        self.answered: list[Row] = []
        """Rows that have an answer, and go on once all of the call have one."""
        self.slots: list[Slot[Any]] = []
        """The answers of these."""
        self.new: list[int] = []
        self.rows: dict[int, Row] = {}
        self.inputs: dict[int, Any] = {}
        """What the engine gets for each of them."""
        self._same: dict[Hashable, int] = {}
        """By `EngineRequest.same`, the row that others may be asked with."""
        self._names: dict[int, Hashable] = {}
        """Of these rows, `EngineRequest.same`."""
        self.others: dict[int, list[Row]] = {}
        """Other rows, which want the same as the one of that number."""

    def want(self, number: int, row: Row, wanted: EngineRequest) -> bool:
        """Take a row under this number; False where it is asked with another one."""
        if wanted.same is not None:
            first = self._same.setdefault(wanted.same, number)
            if first != number:
                self.others.setdefault(first, []).append(row)
                return False
            self._names[number] = wanted.same
        self.rows[number], self.inputs[number] = row, wanted.input
        self.new.append(number)
        return True

    def end(self, number: int) -> tuple[Any, list[Row]]:
        """What the engine got under this number, and the rows that have the answer."""
        self._same.pop(self._names.pop(number, None), None)
        return self.inputs.pop(number), [self.rows.pop(number), *self.others.pop(number, ())]

    @property
    def all_rows(self) -> list[Row]:
        """The rows of all numbers."""
        return [*self.rows.values(), *(row for rows in self.others.values() for row in rows)]


def in_order(items: Iterable[T], row_of: Callable[[T], Row]) -> list[T]:
    """Items that stand for a row each, in the order of the input and of a request's samples."""
    by_sample = sorted(items, key=lambda item: row_of(item).sample)
    return sorted(by_sample, key=lambda item: row_of(item).key)


def is_light(pipe: Pipe[Any, Any], batch: Sequence[Slot[Any]]) -> bool:
    """Whether an event loop takes these requests through the pipe by itself, which costs less than
    another thread does. They are few and short and have no images, the stages are pipegen's own,
    and the rows are computed by a server of which the model has been read.
    """
    for step in pipe.steps:
        if isinstance(step, Branch):
            return False  # it may ask a function of the user's
        if isinstance(step, Call):
            engine: Any = step.backend
            read = reader_of(engine).known.get("model") is not None
            if not read or not getattr(engine, "elsewhere", False) or engine.plugins:
                return False
    few = len(batch) <= FEW and pipe.internal
    return few and all(_is_short(slot.unwrap()) for slot in batch if is_ok(slot))


def _is_short(request: Any) -> bool:
    if not isinstance(request, GenerationRequest) or request.sources:
        return False
    texts: list[Any] = [request.prompt or request.prompt_token_ids or ""]
    for message in request.messages or ():
        content = message.content or ""
        texts += (
            [content]
            if isinstance(content, str)
            else [part.text for part in content if isinstance(part, TextPart)]
        )
    return sum(map(len, texts)) <= SHORT


def image_bytes(wanted: Any) -> int:
    """What the images of a call's input take, in bytes: as pixels, or as they came."""
    if isinstance(wanted, Encoded):
        images = wanted.prompt.images
        return sum([len(image.rgb) for image in images]) if images else 0
    return (
        sum(len(piece) for source in wanted.request.sources for piece in source.contents)
        if isinstance(wanted, ResolvedRequest)
        else 0
    )
