"""The border with foreign code and foreign data: whatever they raise fails their own row, and
nothing else.

Foreign code is decoders, plugins, templates and tokenizers; foreign data is requests and servers'
answers. Every call of the one, and every reading of the other, goes through `guard`. Any
`Exception` becomes a typed error with an incident, and its traceback goes to the log. The code in
between is pipegen's own. There only `EXHAUSTED` is caught, since one row may be too large or nested
too deep for it. A bug raises.

>>> from pipegen.core.errors import PluginFailed
>>> slot = guard(
...     lambda: 1 // 0,
...     lambda raised: PluginFailed(f"it raised {raised.words}", incident=raised.incident),
... )
>>> slot.failure().message, len(slot.failure().incident)
('it raised ZeroDivisionError: integer division or modulo by zero', 12)
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple, ParamSpec, TypeVar

from returns.result import Failure, Result, Success

from pipegen.core.errors import GenerationError

T = TypeVar("T")
P = ParamSpec("P")
E = TypeVar("E", bound=GenerationError)

_PANIC = "PanicException"
"""What packages written in Rust (tokenizers) raise for a bug of theirs. It is no `Exception`."""


class TokenizerFailed(Exception):
    """A tokenizer raised, in words: the row whose text or ids it was given fails."""


EXHAUSTED: tuple[type[Exception], ...] = (MemoryError, RecursionError, TokenizerFailed)
"""What any code may raise for one row: it is too large, nested too deep, or more than its tokenizer
can do.
"""


class Raised(NamedTuple):
    """An exception in words, and the incident under which the log has its traceback."""

    words: str
    incident: str


def report(raised: BaseException, *, traced: bool = True) -> Raised:
    """The exception in words. With `traced`, its traceback goes to the log, under a new incident.

    >>> report(ValueError("no"), traced=False)
    Raised(words='ValueError: no', incident='')
    """
    import logging  # seldom needed, and `import pipegen` stays light

    try:
        message = str(raised)[:500]
    except Exception:  # noqa: BLE001 - a foreign exception may fail even to say what it is
        message = "(its message cannot be read)"
    if not message and raised.__cause__ is not None:  # as of a Failure that was unwrapped
        message = report(raised.__cause__, traced=False).words
    text = f"{type(raised).__name__}: {message}" if message else type(raised).__name__
    if not traced:
        return Raised(text, "")
    seen = Raised(text, os.urandom(6).hex())
    logging.getLogger("pipegen").error(
        "incident %s: %s",
        seen.incident,
        seen.words,
        exc_info=(type(raised), raised, raised.__traceback__),
    )
    return seen


def guard(
    work: Callable[[], T],
    failed: Callable[[Raised], E],
    *,
    known: tuple[type[BaseException], ...] = (),
    only: tuple[type[BaseException], ...] = (Exception,),
) -> Result[T, E]:
    """What `work` gives; where it raises one of `only`, the error that `failed` makes of it. What
    ends the program (Ctrl-C, exit) comes through.

    Exceptions of the kinds `known` say all there is to know in their words: of them nothing is
    logged, and the incident is empty.

    >>> guard(lambda: 3, lambda raised: GenerationError(raised.words))
    <Success: 3>
    """
    return guard_result(lambda: Success(work()), failed, known=known, only=only)


def attempt(work: Callable[[], T]) -> Result[T, Exception]:
    """What `work` gives, or the exception that it raised: for one that is to be raised later, or
    elsewhere.

    >>> attempt(lambda: 1 // 0)
    <Failure: integer division or modulo by zero>
    """
    try:
        return Success(work())
    except Exception as raised:  # noqa: BLE001 - the caller raises it
        return Failure(raised)


def call_tokenizer(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What a tokenizer's method gives. Whatever it raises is `TokenizerFailed`, one of `EXHAUSTED`,
    which fails the current row.

    >>> call_tokenizer(bytes.decode, b"\\xff")
    Traceback (most recent call last):
    ...
    pipegen.core.foreign_calls.TokenizerFailed: UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte
    """
    try:
        return call(*args, **kwargs)
    except BaseException as raised:
        if not isinstance(raised, Exception) and type(raised).__name__ != _PANIC:
            raise
        raise TokenizerFailed(report(raised, traced=False).words) from raised


def guard_result(
    work: Callable[[], Result[T, E]],
    failed: Callable[[Raised], E],
    *,
    known: tuple[type[BaseException], ...] = (),
    only: tuple[type[BaseException], ...] = (Exception,),
) -> Result[T, E]:
    """As `guard`, for work that gives a slot itself."""
    try:
        return work()
    except BaseException as raised:
        if not isinstance(raised, (*known, *only)) and not (
            type(raised).__name__ == _PANIC and Exception in only
        ):
            raise
        return Failure(failed(report(raised, traced=not isinstance(raised, known))))
