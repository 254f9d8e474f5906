"""The steps of a job: answers to single calls, for rows that take more than one.

A row may ask an engine several times: samples, or a judge after a rollout. While it does, each
answer that does not end it is written to a journal of its own, `steps-0001.jsonl` and so on, beside
the rows. A row that is begun again takes them from there, and asks only for the others. A row of
one call writes none.

The key of a step is content, as that of a row is. It is made of the row's key, which of its calls
it is, what the engine's answers depend on, and what is asked of it. Equal inputs of a call have an
ordinal. Failed answers are not kept.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from immutabledict import immutabledict
from returns.result import Success

from pipegen.core.foreign_calls import attempt
from pipegen.core.interpreter import Row
from pipegen.core.slots import Slot, is_ok
from pipegen.core.steps import EngineRequest
from pipegen.engines.protocol import answers_depend_on
from pipegen.jobs.job_rows import JobRow
from pipegen.jobs.journal import STEPS, Journal
from pipegen.jobs.row_keys import Settings, call_key, in_keys
from pipegen.records import strict_json
from pipegen.records.codec import decode, encode
from pipegen.records.fields import unchecked_replace
from pipegen.records.results import ChatOutput, Ending, ToolReplies
from pipegen.stages import Raw

K = TypeVar("K")


_NONE: Settings = immutabledict()


class TakenRow(Generic[K]):
    """A row that was taken and not given out, and its slot once there is one."""

    def __init__(self, job_row: JobRow[K]) -> None:
        self.row = job_row
        self.slot: Slot[object] | None = None
        """Set once the row has ended in this run."""


class Steps:
    """The steps of a job's folder. Raises `JournalError` as `Journal` does."""

    def __init__(self, folder: Path, settings: Settings = _NONE) -> None:
        self._folder, self._settings = folder, settings
        self._engines: dict[int, tuple[object, str]] = {}
        """By the id of a call's backend: it, and what its answers depend on, as that was at its
        first call.
        """
        self._journal = (
            Journal(folder, STEPS)
            if next(folder.glob(f"{STEPS}-*.jsonl"), None) is not None
            else None
        )

    def of(self, turn: TakenRow[Any], row: Row, wanted: EngineRequest) -> Slot[Any] | None:
        """The answer to what a row wants, where it is kept."""
        key = self._key(turn, row, wanted)
        if key is None or self._journal is None or not len(self._journal) or turn.row.anew:
            return None
        return self._kept(self._journal, key, wanted.input)

    def keep(
        self, turn: TakenRow[Any], row: Row, wanted: EngineRequest, slot: Slot[object]
    ) -> None:
        """Write an answer, where it and what asks for it can be written."""
        key = self._key(turn, row, wanted)
        text = attempt(lambda: _line_of(slot)).value_or("")
        if key is not None and text:
            if self._journal is None:
                self._journal = Journal(self._folder, STEPS)
            self._journal.append(key, text)

    def close(self) -> None:
        """Sync, and let go of the files. May be called again. Raises `JournalError` where the last
        steps cannot be synced.
        """
        if self._journal is not None:
            self._journal.close()

    @staticmethod
    def _kept(journal: Journal, key: str, call_input: object) -> Slot[Any] | None:
        values = journal.get(key)
        if values is None:
            return None
        answer = attempt(lambda: answer_from(values, call_input))
        if is_ok(answer):
            return Success(answer.unwrap())
        journal.forget(key, str(answer.failure()))  # another version of pipegen wrote it
        return None

    def _key(self, turn: TakenRow[Any], row: Row, wanted: EngineRequest) -> str | None:
        """What a row wants, where it is in the pipe, and of whom it wants it. None where a stage
        has changed what it wants to what has no key: what is wrong with that, the engine says.
        """
        backend = wanted.backend
        if id(backend) not in self._engines:
            depends = json.dumps(in_keys(answers_depend_on(backend)), sort_keys=True)
            self._engines[id(backend)] = backend, depends
        at = [row.place, row.sample, len(row.answers)]
        depends = self._engines[id(backend)][1]
        key = attempt(
            lambda: call_key(turn.row.key or "", at, depends, wanted.input, self._settings)
        )
        return key.value_or(None)


def _line_of(slot: Slot[object]) -> str:
    """The answer as a line of JSON; empty for one that failed, or whose form is not known."""
    values = slot.map(answer_to_plain).value_or(None)
    return "" if values is None else strict_json.dump(values)


_KINDS: Mapping[str, tuple[type[Any], str]] = {
    "tokens": (Raw, "encoded"),
    "text": (ChatOutput, "resolved"),
    "tools": (ToolReplies, "result"),
}
"""The answers that have a plain form, each with its field for what was asked."""


def answer_to_plain(answer: Any) -> dict[str, object] | None:
    """The answer as JSON data; None where it is of an engine of one's own that answers in another
    form.
    """
    for name, (kind, _) in _KINDS.items():
        if type(answer) is kind:
            ending = answer.ending if isinstance(answer, Raw) else None
            is_its_own = ending is not None and ending.is_about(answer)
            return {
                "answer": name,
                **encode(answer),
                **({"ending": encode(ending)} if is_its_own else {}),
            }
    return None


def answer_from(values: Mapping[str, Any], engine_input: Any) -> object:
    """The answer that `answer_to_plain` was given, to this row. Raises `KeyError`, `TypeError` or
    `ValueError` for other data.

    >>> from pipegen.records.options import resolve
    >>> from pipegen.records.requests import GenerationRequest
    >>> from pipegen.records.results import Encoded, Prompt
    >>> asked = Encoded(
    ...     request=GenerationRequest(prompt="Hi"),
    ...     options=resolve(),
    ...     prompt=Prompt(token_ids=(72,), compact_token_ids=(72,)),
    ... )
    >>> answer = Raw(encoded=asked, token_ids=(66, 257))
    >>> answer_from(answer_to_plain(answer), asked) == answer
    True
    """
    fields = dict(values)
    kind, name = _KINDS[fields.pop("answer")]
    ending = fields.pop("ending", None)
    answer = decode(fields, kind, **{name: engine_input})
    if ending is None:
        return answer
    of_ending = {"token_ids": answer.token_ids, "options": engine_input.options}
    return unchecked_replace(answer, ending=decode(ending, Ending, **of_ending))
