"""The steps of a job: answers to single calls, for rows that take more than one.

A row may ask an engine several times: samples, or a judge after a rollout. While it does, each answer that does not end it is written to a journal of its own,
`steps-0001.jsonl` and so on, beside the rows. A row that is begun again takes them from there, and asks only for the others. A row of one call writes none.

The key of a step is content, as that of a row is: the row's key, which of its calls it is, the model, what is asked of it, and an ordinal among equal inputs
of the call. Failed answers are not kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from returns.result import Success

from pipegen.core.border import attempt
from pipegen.core.calls import Call
from pipegen.core.slots import Slot, is_ok
from pipegen.engines.protocol import Answers
from pipegen.io.answers import answer_from, answer_to_plain
from pipegen.jobs.journal import STEPS, Journal
from pipegen.jobs.keys import call_key
from pipegen.jobs.rows import Row

__all__ = ["Steps", "Turn"]

K = TypeVar("K")


class Turn(Generic[K]):
    """A row that was taken and not given out, and its slot once there is one."""

    def __init__(self, row: Row[K]) -> None:
        self.row = row
        self.slot: Slot[Any] | None = None
        """Set once the row has ended in this run."""
        self.keys: dict[int, list[str]] = {}
        """Of each call whose answers were looked for or kept, the keys of its inputs."""


class Steps:
    """The steps of a job's folder. Raises `JournalError` as `Journal` does."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._journal = Journal(folder, STEPS) if next(folder.glob(f"{STEPS}-*.jsonl"), None) is not None else None

    def of(self, turn: Turn[Any], number: int, call: Call) -> Sequence[Slot[Any] | None]:
        """The answers to a call that are kept."""
        if self._journal is None or not len(self._journal) or turn.row.key is None or turn.row.anew:
            return [None] * len(call.inputs)
        return [self._kept(self._journal, key, asked) for key, asked in zip(_keys(turn, turn.row.key, number, call), call.inputs, strict=True)]

    def keep(self, turn: Turn[Any], number: int, call: Call, answers: Mapping[int, Slot[Any]]) -> None:
        """Write answers to a call, by the places of their inputs."""
        for place, slot in answers.items():
            values = answer_to_plain(slot.unwrap()) if is_ok(slot) else None
            if values is not None and turn.row.key is not None:
                if self._journal is None:
                    self._journal = Journal(self._folder, STEPS)
                self._journal.append(_keys(turn, turn.row.key, number, call)[place], values)

    def close(self) -> None:
        """Sync, and let go of the files. May be called again. Raises `JournalError` where the last steps cannot be synced."""
        if self._journal is not None:
            self._journal.close()

    @staticmethod
    def _kept(journal: Journal, key: str, asked: Any) -> Slot[Any] | None:
        values = journal.get(key)
        if values is None:
            return None
        answer = attempt(lambda: answer_from(values, asked))
        if is_ok(answer):
            return Success(answer.unwrap())
        journal.forget(key, str(answer.failure()))  # another version of pipegen wrote it
        return None


def _keys(turn: Turn[Any], row: str, number: int, call: Call) -> list[str]:
    if number not in turn.keys:
        identity = call.backend.identity if isinstance(call.backend, Answers) else call.backend.name
        first = [call_key(row, number, identity, asked) for asked in call.inputs]
        seen: Counter[str] = Counter()
        turn.keys[number] = []
        for key in first:
            turn.keys[number].append(key if not seen[key] else call_key(key, seen[key], identity, None))
            seen[key] += 1
    return turn.keys[number]
