"""What computes for the Hugging Face engine: the weights, what is kept beside them, and one schedule
for all calls. It is made with the first call.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from returns.result import Failure, Result

from pipegen.backends.checkpoint.adapters import BadAdapter
from pipegen.backends.checkpoint.checkpoint import Checkpoint
from pipegen.backends.checkpoint.checkpoint_engine import release
from pipegen.backends.checkpoint.in_memory import CheckpointInMemory
from pipegen.backends.checkpoint.load_errors import engine_failed, load_failed
from pipegen.backends.checkpoint.verdicts import CannotCheck
from pipegen.backends.hf.compiled import CompileFailed
from pipegen.backends.hf.first_steps import (
    Way,
    check_first_steps,
    use_way,
    way_of,
)
from pipegen.backends.hf.hf_grammar import Grammars
from pipegen.backends.hf.hf_rows import HFRow
from pipegen.backends.hf.load import (
    PassFailed,
    Weights,
    advice,
    is_out_of_memory,
    pass_failed,
)
from pipegen.backends.hf.pixels import Pixels, Prepared
from pipegen.backends.hf.prefixes import HELD, Prefixes
from pipegen.backends.hf.scheduler import ModelTraits, Schedule
from pipegen.backends.step_loop import Mailbox, SharedSteps
from pipegen.core.errors import CallFailed, InvalidRequest
from pipegen.core.foreign_calls import attempt
from pipegen.core.slots import Slot, is_ok
from pipegen.engines.plugin import Plugin
from pipegen.engines.protocol import Event, RowDone
from pipegen.engines.settings import ModelLoadConfig
from pipegen.records.results import Encoded
from pipegen.records.scores import ScoreInput, TokenScores
from pipegen.stages.fitting import check_ids

T = TypeVar("T")

_failed = functools.partial(engine_failed, "hf")
IMAGES = 256 * 2**20
"""Bytes of images that are kept by default."""
PREFIXES = 2**30
"""Bytes of keys and values of prefixes, and of rows that have ended, that stay by default."""
SHARING = 2
"""How many times as many rows may run by default where they share what they begin with: products of
64 rows with the weights take four fifths of the time, a row, that those of 32 take on a CPU.
"""


class Computing:
    """The parts that engines with other plugins share.

    size: how many rows run side by side.
    """

    def __init__(self, load: ModelLoadConfig, checkpoint: Checkpoint, size: int) -> None:
        self._checkpoint, self.size = checkpoint, size
        self.sharing = SHARING * size if load.batch_size is None and not load.deterministic else 0
        """How many rows may run side by side where they share, and hold few columns."""
        self.weights = Weights(checkpoint)
        self._weights_then = b""
        """With which weights of the caller's the prefixes that stay were read."""
        self.grammars = Grammars(checkpoint)
        limit = IMAGES if load.image_memory_bytes is None else load.image_memory_bytes
        # eight of them take the room of one image's inputs, and cost more to make
        self.prepared = Prepared(checkpoint, limit // 4)
        self.pixels = Pixels(checkpoint, limit - limit // 4)
        self.traits = ModelTraits(deterministic=load.deterministic)
        kept = PREFIXES if load.prefix_memory_bytes is None else load.prefix_memory_bytes
        self.prefixes = Prefixes(
            0 if load.deterministic else kept,
            checkpoint,
            self.pixels,
            # the compiled steps see whole rows
            held=math.inf if load.compile else HELD,
        )
        # it holds one at a time, and none between calls
        self.scored_prefixes = Prefixes(math.inf, checkpoint, self.pixels)
        self.shared = SharedSchedule(self._start, self.weights)

    def close(self) -> None:
        """Let go of the weights, and of all that is kept beside them."""
        self.weights.close()
        self.pixels.close()
        self.prepared.clear()
        self.prefixes.clear()
        self.grammars.clear()

    def scores(
        self, numbered_inputs: Sequence[tuple[int, ScoreInput]]
    ) -> dict[int, Slot[TokenScores]]:
        """The log probabilities of continuations; see `pipegen.backends.hf.hf_scoring`."""
        from pipegen.backends.hf.hf_scoring import Scoring

        slots: dict[int, Slot[TokenScores]] = {}
        for position, row in numbered_inputs:
            wrong = self._wrong(row.whole)
            if wrong is not None:
                slots[position] = Failure(wrong)
        right = [(position, row) for position, row in numbered_inputs if position not in slots]
        if right:
            check_process()
            self.loaded()
            slots |= Scoring(
                self.weights,
                self._checkpoint,
                self.pixels,
                self.traits,
                self.scored_prefixes,
                self.size,
            ).run(right)
        return slots

    def row(
        self, position: int, encoded: Encoded, plugins: tuple[Plugin, ...], *, text: bool
    ) -> HFRow:
        """The row at a position of a call, failed where it cannot be run."""
        checkpoint = self._checkpoint
        row = HFRow(
            position,
            encoded,
            checkpoint.tokenizer,
            checkpoint.eos_token_ids,
            plugins,
            text=text,
        )
        row.fail(self._wrong(encoded))
        if row.options.structured is not None:
            row.set_grammar(self.grammars.of(row.options))
        return row

    def _wrong(self, encoded: Encoded) -> InvalidRequest | None:
        """What is wrong with a row's ids."""
        checkpoint = self._checkpoint
        return check_ids(encoded, checkpoint.vocab_size) or checkpoint.check_placeholders(
            encoded.prompt
        )

    def _start(self) -> Schedule:
        """A schedule on the model, which loads where needed."""
        check_process()
        model, size = self.loaded(), self.size
        if isinstance(self._checkpoint, CheckpointInMemory):
            weights = self._checkpoint.weights_now
            if weights != self._weights_then:
                self.prefixes.clear()
                self._weights_then = weights
            model.eval()  # a trainer may have left it otherwise
        return Schedule(
            model,
            self._checkpoint,
            size,
            self.pixels,
            self.traits,
            self.prefixes,
            self.weights.compiled,
            sharing=self.sharing,
        )

    def check(self) -> Way:
        """How the model's rows are read, by the check of first steps, which is made whatever was
        kept; the weights are loaded. Raises `CallFailed`, and `CannotCheck` where it is not known.
        """
        return self._loading(
            lambda: check_first_steps(self.weights.model(), self._checkpoint, self.pixels)
        )

    def loaded(self) -> Any:
        def load() -> Any:
            model = self.weights.model()
            if not self.traits.checked:
                use_way(way_of(model, self._checkpoint, self.pixels), model, self.traits)
            return model

        return self._loading(load)

    def _loading(self, work: Callable[[], T]) -> T:
        """What `work` gives; raises `CallFailed` where the model cannot be loaded."""
        load = self._checkpoint.load
        try:
            with self.weights.lock, torch.no_grad():
                return work()
        except (CannotCheck, CallFailed):
            raise
        except BadAdapter as error:
            raise CallFailed(_failed(str(error), hint=error.hint)) from error
        except Exception as error:
            # transformers, safetensors, peft and torch raise anything while they load
            if isinstance(error, RuntimeError) and is_out_of_memory(error):
                raise CallFailed(
                    _failed(
                        f"the weights do not fit: {error}",
                        hint="free memory on the device, or load with dtype='bfloat16'",
                    )
                ) from error
            raise load_failed(
                load, "cannot load", error, self._checkpoint.source, hint=advice(load, error)
            ) from error


class SharedSchedule(SharedSteps[Event]):
    """One schedule for the calls of an engine, and of those that differ from it only in their
    plugins: who calls while another call runs joins its batch.

    The schedule is used only under `lock`, and only while the weights' own lock is held. A row is
    in it from `add` until it is done, or its call has left it; then it takes part in no further
    step. Where the model's own code raises, rows are tried in halves, and the one that raises fails
    alone. Whatever else a step raises ends all rows of the schedule. After an interruption (Ctrl-C) rows of
    other calls go on.

    start: makes the schedule, which loads the weights where needed. Raises `CallFailed`.
    """

    def __init__(self, start: Callable[[], Schedule], weights: Weights) -> None:
        super().__init__()
        self._start, self._weights = start, weights
        self._schedule: Schedule | None = None
        self._process = os.getpid()

    def add(self, rows: Sequence[HFRow]) -> None:
        """Let rows take part. Raises `CallFailed` where the weights cannot be loaded."""
        with self.entered():
            if self._schedule is not None and (
                self._schedule.finished or self._process != os.getpid()
            ):
                self._schedule = None  # done, or of the process that this one was forked from
            if self._schedule is None:
                self._schedule, self._process = self._start(), os.getpid()
            self._schedule.add(rows)

    def _advance(self) -> None:
        schedule = self._schedule
        if schedule is None:
            return
        retry: Callable[[], list[HFRow]] | None = None
        rows: list[HFRow] = []
        try:
            with self._weights.lock, torch.no_grad():
                rows = schedule.step()
        except BaseException as raised:
            if not isinstance(raised, Exception):  # Ctrl-C
                schedule.requeue()
                raise
            # each call that the step was for raises it
            stopped = _retry(schedule, raised)
            if not is_ok(stopped):
                self._schedule = None
                for mailbox in {row.mailbox for row in schedule.rows}:
                    mailbox.fail(stopped.failure())
                return
            retry = stopped.unwrap()
        # what the step held is free by now
        rows = rows if retry is None else retry()
        if schedule.finished:  # before anybody is told that its last row has ended
            self._schedule = None
        _tell(rows)

    def _drop(self) -> None:
        if self._schedule is not None:
            self._schedule.prune()
            if all(row.done for row in self._schedule.rows):
                self._schedule = None


def _retry(schedule: Schedule, raised: Exception) -> Result[Callable[[], list[HFRow]], Exception]:
    """How the rows of a step that raised go on: with fewer at a time, where the memory was full or
    the model's code raised. Of any other exception, what each call raises.
    """
    if isinstance(raised, CompileFailed):
        hint = (
            "install what torch.compile needs (a C++ compiler; on a GPU, Triton), or leave"
            " compile out"
        )
        not_compiled = CallFailed(_failed(str(raised), hint=hint))
        not_compiled.__cause__ = raised
        return Failure(not_compiled)
    failed = attempt(lambda: pass_failed(raised))
    return failed.map(lambda why: functools.partial(_requeued, schedule, why))


def _requeued(schedule: Schedule, why: PassFailed) -> list[HFRow]:
    """The rows of a schedule, which wait again with what they have made, but for those that do not
    pass even alone.
    """
    rows = schedule.rows
    for row in schedule.requeue_in_halves() if why.raised else schedule.requeue_after_oom():
        row.fail(why.of_row())
    schedule.prune()
    if why.full:
        release()
    return rows


def _tell(rows: Sequence[HFRow]) -> None:
    for row in rows:
        if row.dropped:
            continue
        event, row.event = row.event, None
        if event is not None and row.error is None:
            row.mailbox.put(event)
        if row.done and not row.reported:
            row.reported = True
            row.mailbox.put(RowDone(row=row.position, slot=row.slot()))


class HFSession:
    """The rows of one call, to which more may be added. Who made it leaves it in the end."""

    def __init__(
        self,
        computing: Computing,
        plugins: tuple[Plugin, ...],
        mailbox: Mailbox[Event],
        *,
        text: bool,
    ) -> None:
        self._computing, self._plugins, self._text = computing, plugins, text
        self._shared, self._mailbox = computing.shared, mailbox
        self.side_by_side = computing.size if mailbox.wake is None else 0
        """How many rows run side by side."""
        self.rows: dict[int, HFRow] = {}
        """The rows that have not ended."""
        self._scored: list[tuple[int, ScoreInput]] = []
        """The rows that are to be scored."""

    @property
    def running(self) -> int:
        """How many rows run, at most."""
        return self._computing.size

    def add(self, inputs: Mapping[int, Encoded | ScoreInput]) -> None:
        """Add rows, by their positions. Raises `CallFailed` where the engine cannot be
        loaded.
        """
        rows: list[HFRow] = []
        for position, entry in inputs.items():
            if isinstance(entry, ScoreInput):
                self._scored.append((position, entry))
            else:
                rows.append(self._computing.row(position, entry, self._plugins, text=self._text))
        for row in rows:
            self.rows[row.position], row.mailbox = row, self._mailbox
        _tell([row for row in rows if row.done])
        live = [row for row in rows if not row.done]
        if live:
            self._shared.add(live)

    def step(self) -> list[Event]:
        """What has come, after a step where nothing has. Rows that are to be scored are scored
        together. Raises as `generate` does.
        """
        if self._scored:
            scored, self._scored = self._scored, []
            slots = self._computing.scores(scored)
            return [RowDone(row=position, slot=slot) for position, slot in slots.items()]
        events = self._shared.step(self._mailbox)
        for event in events:
            if isinstance(event, RowDone):
                del self.rows[event.row]
        return events

    def close(self) -> None:
        """Leave the rows that still run: no further step computes them."""
        if self.rows:
            for row in self.rows.values():
                row.dropped = True
            self.rows.clear()
            self._shared.leave(self._mailbox)


_first: list[int] = []
"""The process that computed first, once one has; one that is forked off later finds it here."""


def check_process() -> None:
    """Raise `CallFailed` in a process that was forked off after torch had computed in the one
    before, unless torch uses one thread alone.
    """
    here = os.getpid()
    if not _first:
        _first.append(here)
    bad_fork = getattr(torch.cuda, "_is_in_bad_fork", bool)()
    if _first[0] != here and (bad_fork or torch.get_num_threads() > 1):
        message = (
            f"process {here} was forked from process {_first[0]}, in which torch had computed"
            " already: here it would wait for ever for its threads"
        )
        hint = (
            "start processes with 'spawn' or 'forkserver', or fork before the first request; on a"
            " CPU, OMP_NUM_THREADS=1 works too"
        )
        raise CallFailed(_failed(message, hint=hint))
