"""The steps of a job: answers to single calls, for rows that take more than one.

A row may ask an engine several times: samples, or a judge after a rollout. While it does, each
answer that does not end it is written to a journal of its own, `steps-0001.jsonl` and so on, beside
the rows. A row that is begun again takes them from there, and asks only for the others. A row of
one call writes none.

The key of a step is content, as that of a row is: the row's key, which of its calls it is, what the
engine's answers depend on, what is asked of it, and an ordinal among equal inputs of the call.
Failed answers are not kept.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from returns.result import Success

from pipegen.core.border import attempt
from pipegen.core.calls import Call
from pipegen.core.slots import Slot, is_ok
from pipegen.engines.protocol import answers_depend_on
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
        self._engines: dict[int, tuple[Any, str]] = {}
        """By the id of a call's backend: it, and what its answers depend on, as that was at its
        first call.
        """
        self._journal = (
            Journal(folder, STEPS)
            if next(folder.glob(f"{STEPS}-*.jsonl"), None) is not None
            else None
        )

    def of(self, turn: Turn[Any], number: int, call: Call) -> Sequence[Slot[Any] | None]:
        """The answers to a call that are kept."""
        if self._journal is None or not len(self._journal) or turn.row.key is None or turn.row.anew:
            return [None] * len(call.inputs)
        return [
            self._kept(self._journal, key, asked)
            for key, asked in zip(
                self._keys(turn, turn.row.key, number, call), call.inputs, strict=True
            )
        ]

    def keep(
        self, turn: Turn[Any], number: int, call: Call, answers: Mapping[int, Slot[Any]]
    ) -> None:
        """Write answers to a call, by the places of their inputs."""
        for place, slot in answers.items():
            values = answer_to_plain(slot.unwrap()) if is_ok(slot) else None
            if values is not None and turn.row.key is not None:
                if self._journal is None:
                    self._journal = Journal(self._folder, STEPS)
                self._journal.append(self._keys(turn, turn.row.key, number, call)[place], values)

    def close(self) -> None:
        """Sync, and let go of the files. May be called again. Raises `JournalError` where the last
        steps cannot be synced.
        """
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

    def _keys(self, turn: Turn[Any], row: str, number: int, call: Call) -> list[str]:
        if number not in turn.keys:
            if id(call.backend) not in self._engines:
                self._engines[id(call.backend)] = (
                    call.backend,
                    json.dumps(answers_depend_on(call.backend), sort_keys=True),
                )
            engine = self._engines[id(call.backend)][1]
            first = [call_key(row, number, engine, asked) for asked in call.inputs]
            seen: Counter[str] = Counter()
            turn.keys[number] = []
            for key in first:
                turn.keys[number].append(
                    key if not seen[key] else call_key(key, seen[key], engine, None)
                )
                seen[key] += 1
        return turn.keys[number]
