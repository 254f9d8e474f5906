"""Whose bug is it: the stage that raised, on the exception itself, as a note (PEP 678).

The exception of a bug raises as it is. On its way out of a pipe it gets one note: which stage
raised, and at which slot of the batch. The driver, which knows the requests, puts the request's
name into it. So a traceback names both, and where bugs are isolated the note says whether the stage
is pipegen's own. The exception of an engine gets a note with the engine's name.

>>> from returns.result import Success
>>> from pipegen.core.pipe import each
>>> try:
...     each("root", lambda n: Success(n**0.5)).apply((Success(4), Success("x")))
... except TypeError as raised:
...     print(raised.__notes__[0].partition(";")[0])
raised by the stage 'root' at slot 1 of the batch
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class StageNote(str):
    """The note: its text, and what the text is made of."""

    __slots__ = ("advice", "internal", "request", "row", "stage")

    stage: str
    internal: bool
    """Whether pipegen itself made the stage."""
    advice: str
    """How such a request can fail alone; empty where nothing but a correction helps."""
    row: int | None
    """The slot, in the batch of the pipe that the exception has come to; None where the stage works
    on all of them at once.
    """
    request: str
    """The request in words; empty until a driver has named it."""

    def __new__(
        cls, stage: str, internal: bool, advice: str = "", row: int | None = None, request: str = ""
    ) -> StageNote:
        whose = f"the stage {stage!r}{' of pipegen' if internal else ''}"
        place = request or (f"slot {row} of the batch" if row is not None else "")
        where = f" at {place}" if place else ""
        how = f"; to fail such a request alone, {advice}" if advice else ""
        self = super().__new__(cls, f"raised by {whose}{where}{how}")
        self.stage, self.internal, self.advice = stage, internal, advice
        self.row, self.request = row, request
        return self

    def __getnewargs__(self) -> Any:  # what pickle calls `__new__` with
        return self.stage, self.internal, self.advice, self.row, self.request


class EngineNote(str):
    """The note on what an engine raised: its text, and the engine's name."""

    __slots__ = ("engine",)

    engine: str

    def __new__(cls, engine: str) -> EngineNote:
        self = super().__new__(cls, f"raised by the engine {engine!r}")
        self.engine = engine
        return self

    def __getnewargs__(self) -> tuple[str]:  # what pickle calls `__new__` with
        return (self.engine,)


def blamed_on(raised: Exception, engine: str) -> None:
    """Put the name of the engine that raised on an exception.

    >>> bug = KeyError("logits")
    >>> blamed_on(bug, "mine")
    >>> bug.__notes__, engine_of(bug)
    (["raised by the engine 'mine'"], 'mine')
    """
    if not engine_of(raised):
        BaseException.__setattr__(raised, "__notes__", [*_notes(raised), EngineNote(engine)])


def engine_of(raised: BaseException) -> str:
    """The name of the engine that raised; empty where none did."""
    return next((note.engine for note in _notes(raised) if isinstance(note, EngineNote)), "")


def note_of(raised: BaseException) -> StageNote | None:
    """The note on an exception; of several, as where a stage runs a pipe of its own, the last."""
    return next((note for note in reversed(_notes(raised)) if isinstance(note, StageNote)), None)


def blamed(raised: Exception, note: StageNote) -> None:
    """Put the note on an exception. A note whose request no driver has named gives way to it."""
    notes = [previous for previous in _notes(raised) if not _pending(previous)]
    # Not `add_note`: an exception that is a frozen dataclass refuses it.
    BaseException.__setattr__(raised, "__notes__", [*notes, note])


def raisable(raised: Exception) -> Exception:
    """The exception as it may leave a stage: in the place of a `StopIteration`, which would end the
    generator that runs the stage, a `RuntimeError`.

    >>> raisable(StopIteration())
    RuntimeError('StopIteration was raised: there was no next one; next(iterator, default) gives a default')
    """
    if not isinstance(raised, StopIteration):
        return raised
    error = RuntimeError(
        "StopIteration was raised: there was no next one; next(iterator, default) gives a default"
    )
    error.__cause__ = raised
    return error


def named(raised: Exception, name: Callable[[int | None], str]) -> None:
    """Put the request into the note, in the words that `name` has for the slot."""
    note = note_of(raised)
    if note is not None and _pending(note):
        blamed(raised, StageNote(note.stage, note.internal, note.advice, note.row, name(note.row)))


def _notes(raised: BaseException) -> list[object]:
    notes = getattr(raised, "__notes__", None)
    return notes if isinstance(notes, list) else []


def _pending(note: object) -> bool:
    return isinstance(note, StageNote) and not note.request
