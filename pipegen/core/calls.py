"""Calls: what a running pipe asks of the driver that performs them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from pipegen.core.backend import Backend
from pipegen.core.slots import Batch, Slot

__all__ = ["Call", "Row", "Sampling", "Steps"]

B = TypeVar("B")

Row: TypeAlias = tuple[int, int]
"""A row's place: the position of its request in the batch that the driver was given, and which of
its samples it is.
"""


@dataclass(frozen=True, slots=True)
class Call:
    """The only effect: one call of `backend` with all live inputs. `rows` says which row each input
    is, as the driver counts them.
    """

    backend: Backend[Any, Any]
    inputs: tuple[Any, ...]
    rows: tuple[Row, ...]
    shown: bool = True
    """Whether the text that the call streams is, unchanged, the text of the result: every stage
    after it keeps the text.
    """
    follow: Callable[[Any], Any] | None = None
    """Makes, for one input, what turns streamed token ids into text; the stage that decodes the
    answers says it.
    """


Steps: TypeAlias = Generator[Call, Sequence[Slot[Any]], Batch[B]]
"""A running pipe: yields calls, is sent their answers, returns the batch."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a request becomes several rows, and how what became of them is put together (see
    `pipegen.stages.parts.samples`).
    """

    count: Callable[[Slot[Any]], int]
    """Into how many rows the request of a slot is expanded."""
    sample: Callable[[Slot[Any], int, int], Slot[Any]]
    """`sample(slot, number, count)` is one of these rows."""
    completions: Callable[[Slot[Any]], Sequence[Slot[Any]]]
    """The rows of a slot that holds all of them."""
    gather: Callable[[Sequence[Slot[Any]], Slot[Any] | None], Slot[Any]]
    """`gather(rows, request)` is the slot that holds all of them; `request` is None where they are
    no answers to one and the same request.
    """
    link: Callable[[Slot[Any], Slot[Any]], Slot[Any]]
    """`link(slot, before)` is the slot with the answer that its request was made of."""
