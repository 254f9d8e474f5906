"""What a flow works on: units, each one request on its way, and the open calls of engines that are
fed with their rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Any, Generic, Protocol, TypeVar

from pipegen.core.backend import OpenCall
from pipegen.core.calls import Call
from pipegen.core.drive import Started
from pipegen.core.slots import Slot
from pipegen.records.requests import GenerationRequest
from pipegen.records.results import Encoded, ResolvedRequest

__all__ = ["Feed", "KeptAnswers", "NoRequest", "Unit", "image_bytes"]

K = TypeVar("K")
K_contra = TypeVar("K_contra", contravariant=True)


class NoRequest(Enum):
    """What an input gives where it has no request."""

    NOW = auto()
    """None yet: `Flow.wake` is called when there may be one."""
    MORE = auto()
    """The input has ended."""


class KeptAnswers(Protocol[K_contra]):
    """Answers to single calls that outlive the process. `number` counts the calls of a request,
    from 1.
    """

    def of(self, key: K_contra, number: int, call: Call) -> Sequence[Slot[Any] | None]:
        """For each input of the call its answer, or None where none is kept."""
        ...

    def keep(
        self, key: K_contra, number: int, call: Call, answers: Mapping[int, Slot[Any]]
    ) -> None:
        """Keep answers to a call, by the places of their inputs: the request has not ended with
        them.
        """
        ...


class Unit(Generic[K]):
    """One request on its way."""

    __slots__ = (
        "answers",
        "asked",
        "bug",
        "bytes",
        "calls",
        "key",
        "missing",
        "number",
        "slot",
        "started",
    )

    def __init__(self, key: K, asked: Slot[GenerationRequest], number: int) -> None:
        self.key, self.asked, self.number = key, asked, number
        self.started: Started | None = None
        """The pipe, up to the running call."""
        self.calls = 0
        """How many calls it has begun."""
        self.answers: list[Any] = []
        """Of that call, as far as its rows have ended."""
        self.missing = 0
        """Its rows that have not."""
        self.bytes = 0
        """What its images take."""
        self.slot: Slot[Any] | None = None
        self.bug: Exception | None = None
        """What raises when its turn comes."""

    @property
    def ended(self) -> bool:
        return self.slot is not None or self.bug is not None


class Feed:
    """The open call of one engine, the rows to be added next, and to which unit and place each row
    belongs.
    """

    def __init__(self, backend: Any, call: OpenCall[Any, Any]) -> None:
        self.backend, self.call = backend, call
        self.new: list[tuple[int, Any]] = []
        self.rows: dict[int, tuple[Unit[Any], int]] = {}


def image_bytes(asked: Any) -> int:
    """What the images of a call's input take, in bytes: as pixels, or as they came."""
    if isinstance(asked, Encoded):
        return sum([len(image.rgb) for image in asked.prompt.images])
    return (
        sum(len(source.data or b"") for source in asked.request.sources)
        if isinstance(asked, ResolvedRequest)
        else 0
    )
