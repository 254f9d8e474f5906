"""Slots: how a batch carries its errors.

A slot is a `Result` of the package `returns`: `Success(value)` or `Failure(GenerationError)`. A
batch is a tuple of slots. N requests go in, N slots come out, in the same order; a failed slot
passes every later stage untouched, the same object.

>>> from returns.result import Failure, Success
>>> from pipegen.core.errors import InvalidRequest
>>> batch = (Success(1), Failure(InvalidRequest("no")), Success(3))
>>> live(batch)
(1, 3)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Tuple, TypeAlias, TypeVar  # noqa: UP035 - see Batch

from returns.result import Failure, Result, Success
from typing_extensions import TypeIs

from pipegen.core.errors import GenerationError

T = TypeVar("T")
E = TypeVar("E")

Slot: TypeAlias = Result[T, GenerationError]
Batch: TypeAlias = Tuple[Slot[T], ...]  # noqa: UP006 - unlike `tuple[...]` it can have words
# What `help` and the reference show of these two. It is set past their `__setattr__`, which would
# set it on `Result`.
object.__setattr__(
    Slot,
    "__doc__",
    "The answer to one request: `Success(value)`, or `Failure(error)` with a `GenerationError`."
    " `pg.is_ok(slot)` says which it is. `slot.unwrap()` gives the value, and `slot.failure()` the"
    " error. It is a `Result` of the package returns.",
)
object.__setattr__(
    Batch, "__doc__", "A tuple of slots: one for each request, in the order of the requests."
)


class Unread(Failure[E]):  # type: ignore[misc]  # final; it goes wherever a failure goes
    """A request that failed before the first stage, with the request itself, for a fallback.

    To anything but the first branch of a pipe it is a `Failure`.
    """

    __slots__ = ("given",)
    given: Callable[[], object]
    """Makes the request."""

    def __init__(self, error: E, given: Callable[[], object]) -> None:
        super().__init__(error)
        object.__setattr__(self, "given", given)

    def __reduce__(self) -> tuple[type[Failure[E]], tuple[E]]:
        return Failure, (self.failure(),)

    def plain(self) -> Failure[E]:
        """The failure alone."""
        return Failure(self.failure())


def _misses(slot: Result[object, object], name: str) -> object:
    """Raise `AttributeError` for what a slot does not have. It says what to write instead."""
    kind = type(slot).__name__
    words = f"{kind!r} object has no attribute {name!r}"
    if not name.startswith("_"):
        if isinstance(slot, Success):
            if hasattr(type(slot.unwrap()), name):  # a property may raise
                words = f"a slot has no {name!r}, and the value in it has: slot.unwrap().{name}"
        elif isinstance(error := slot.failure(), GenerationError):
            words = (
                f"a slot has no {name!r}, and this one failed ({type(error).__name__}:"
                f" {error.message:.200}): pg.is_ok(slot) says which did, and slot.failure() why"
            )
    raise AttributeError(words, name=name, obj=slot)


# Only for what is not there: a Result of returns is otherwise as it was.
type.__setattr__(Result, "__getattr__", _misses)


def is_ok(slot: Result[T, E]) -> TypeIs[Success[T]]:
    """Whether the slot holds a value; type checkers follow it.

    >>> from returns.result import Failure
    >>> is_ok(Success(1)), is_ok(Failure("no"))
    (True, False)
    """
    return isinstance(slot, Success)


def live(batch: Iterable[Slot[T]]) -> tuple[T, ...]:
    """The values of the slots that hold one, in order.

    >>> live((Success(1), Success(2)))
    (1, 2)
    """
    return tuple([slot.unwrap() for slot in batch if isinstance(slot, Success)])


def all_of(slots: Iterable[Result[T, E]]) -> Result[tuple[T, ...], E]:
    """The values of slots that all hold one, else the first failure, after which none is drawn.

    >>> from returns.result import Failure
    >>> all_of([Success(1), Success(2)]), all_of([Success(1), Failure("no")])
    (<Success: (1, 2)>, <Failure: no>)
    """
    values: list[T] = []
    for slot in slots:
        if not is_ok(slot):
            return Failure(slot.failure())
        values.append(slot.unwrap())
    return Success(tuple(values))
