"""A whole batch through a pipe: all rows go through a stage together, and one call of an engine has
all the rows that want it at one place of the pipe. Who awaits or streams performs the same calls.

>>> from returns.result import Success
>>> from pipegen.core.pipe import pure
>>> drive(pure("double", lambda n: 2 * n), [Success(2)])
(<Success: 4>,)
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from returns.result import Failure

from pipegen.core.errors import CallFailed, ContractError
from pipegen.core.pipe import Pipe
from pipegen.core.rows import Row, advance
from pipegen.core.slots import Batch, Slot
from pipegen.core.steps import Wanted

__all__ = ["Whole", "WholeCall", "drive"]

B = TypeVar("B")


def drive(pipe: Pipe[Any, B], batch: Iterable[Slot[Any]]) -> Batch[B]:
    """Run a pipe over the slots of a batch, performing its calls one after the other."""
    whole = Whole(pipe, batch)
    for call in whole.calls():
        with call:
            call.answer(call.backend.generate(call.inputs))
    return tuple(whole.slots)


class WholeCall:
    """One call of an engine. Where it fails while this is entered, the rows without an answer
    fail.
    """

    __slots__ = ("answers", "backend", "rows", "same")

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.rows: list[list[tuple[Row, Wanted]]] = []
        """For each input the rows that want it."""
        self.same: dict[Hashable, list[tuple[Row, Wanted]]] = {}
        self.answers: dict[int, Slot[Any]] = {}
        """By the place of the input."""

    @property
    def inputs(self) -> list[Any]:
        return [rows[0][1].input for rows in self.rows]

    def answer(self, answers: Sequence[Slot[Any]]) -> None:
        """Take the answers. Raises `ContractError` for another number of them."""
        if len(answers) != len(self.rows):
            raise ContractError(
                f"engine {self.backend.name} returned {len(answers)} outputs for"
                f" {len(self.rows)} inputs"
            )
        self.answers = dict(enumerate(answers))

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, raised: BaseException | None, traceback: object) -> bool:
        if not isinstance(raised, CallFailed):
            return False
        for place in range(len(self.rows)):
            self.answers.setdefault(place, Failure(raised.error))
        return True


class Whole:
    """The rows of a batch, which are numbered by the positions of their requests.

    again: gives the answer of a row that is not to be asked for again.
    """

    def __init__(
        self,
        pipe: Pipe[Any, Any],
        batch: Iterable[Slot[Any]],
        again: Callable[[Row], Slot[Any] | None] | None = None,
    ) -> None:
        self._pipe, self._again = pipe, again
        self.slots = [*batch]
        """What came in; of requests that have ended, what came out."""
        self._calls: dict[Any, WholeCall] = {}
        """By the place in the pipe. Of one place, what is not shown comes first: the scores of
        prompts.
        """
        self._waiting: dict[int, list[Row]] = {}

    def calls(self) -> Iterator[WholeCall]:
        """The calls, each to be performed before the next one is taken. All rows come to a call
        before it begins.
        """
        self._go([Row(number, slot) for number, slot in enumerate(self.slots)])
        while self._calls:
            name = min(self._calls)
            call = self._calls[name]
            call.rows.sort(key=lambda rows: (rows[0][0].key, rows[0][0].sample))
            yield call
            del self._calls[name]
            answers = call.answers
            self._go(
                [row.answered(answers[n]) for n, rows in enumerate(call.rows) for row, _ in rows]
            )

    def live(self) -> Iterator[Row]:
        """The rows that have not ended."""
        for call in self._calls.values():
            for rows in call.rows:
                for row, _ in rows:
                    yield row
        for waiting in self._waiting.values():
            yield from waiting

    def _go(self, rows: list[Row]) -> None:
        """Let rows go on, with those of their requests that wait for them."""
        if self._waiting:
            for number in {row.key for row in rows}:
                rows += self._waiting.pop(number, ())
        done = advance(self._pipe, rows)
        answered: list[Row] = []
        for row in done.ended:
            self.slots[row.key] = row.value
        for row in done.waiting:
            self._waiting.setdefault(row.key, []).append(row)
        if self._again is not None:
            done.calls.sort(key=lambda one: (one[0].key, one[0].sample))
        for row, wanted in done.calls:
            if self._again is not None and (slot := self._again(row)) is not None:
                answered.append(row.answered(slot))
                continue
            name = row.place, wanted.shown, id(wanted.backend)
            call = self._calls.get(name)
            if call is None:
                call = self._calls[name] = WholeCall(wanted.backend)
            same = [] if wanted.same is None else call.same.setdefault(wanted.same, [])
            if not same:
                call.rows.append(same)
            same.append((row, wanted))
        if answered:
            self._go(answered)
