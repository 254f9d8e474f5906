"""Which rows the model works on at each step: continuous batching. Rows may be added at any time
(see `pipegen.backends.hf.hf_engine`).

**States.** A row is *waiting*, *prefilled*, *running* or *done*.

- waiting: its prompt is not in any cache. Rows with equal prompts and images wait together, since
  one prefill serves all of them (see `RequestQueue`).
- prefilled: its sequence is in the cache of `_prefilled`, and the logits of its next token are
  known. It waits for a free slot of the running batch.
- running: it is in the running batch, and each decode step brings it one token.
- done: it has ended or failed, or its call has left it. Its slot is free at once, and is reused or
  dropped by a later step.

**Transitions.** `step` does one of two things, and each of them brings at least one row one token
further:

- Where a slot is free and a row waits, `_prefill` moves waiting rows to prefilled, ahead of need,
  since one pass for several costs less. Then `_insert` chooses the first token of as many prefilled
  rows as there are free slots. It moves those that are not done to running.
- Otherwise `_decode` runs one pass for all running rows; for one that runs alone, the pass also
  checks a guess at what follows. Before the pass, `_requeue_long` moves rows that have just become
  long for LongRoPE back to waiting, and `_evict_finished` drops done rows.

Of rows that end in either, `_keep` lets what was read and generated stay, for prompts that begin
with it (see `pipegen.backends.hf.prefixes`).

`requeue` moves every row that is not done back to waiting, with the tokens it has.
`requeue_after_oom` also lets go of what stays of earlier rows. Where there is nothing, it halves
the number of tokens that may be cached. `requeue_in_halves`, after the model's code raised, halves
the number of rows that run at a time, until one is alone. From then on equal rows are read one by
one: as many run as are read, so what was halved bounds both.

**Invariants.**

- Every row is in exactly one state; a row keeps its generated tokens in every transition, so it
  continues where it was.
- `_running[i]`, `_tokens[i]`, the sampler's row i and row i of `_batch` are the same row.
- At most `_most` rows are running (`size`, or fewer after a pass that raised), or up to `sharing`
  where these hold no more columns than `_most` that share nothing. Sequences times width is at most
  `_max_tokens` where that is known, unless a single sequence is longer.
- Where rows of several adapters cannot be in one pass, all rows that run or are prefilled have one.
- A row's tokens depend on its own options and seed alone, not on when it ran or beside which rows;
  with `ModelTraits.deterministic` so does each bit of its logits, since it is read and run alone.
- A `StaticBatch` (a model whose cache is not known) is not changed until its last row is done.
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, NamedTuple

import torch

from pipegen.backends.checkpoint.checkpoint import Checkpoint
from pipegen.backends.hf.cache import max_cached_tokens
from pipegen.backends.hf.compiled import Compiled, CompileFailed
from pipegen.backends.hf.hf_rows import HFRow, group_size, pass_tokens
from pipegen.backends.hf.hf_sampling import Sampler
from pipegen.backends.hf.lookup import Lookup
from pipegen.backends.hf.pixels import Pixels
from pipegen.backends.hf.prefixes import Prefixes
from pipegen.backends.hf.row_adapters import adapters_together, use_adapters
from pipegen.backends.hf.running_batch import RunningBatch, StaticBatch
from pipegen.backends.request_queue import RequestQueue
from pipegen.ending.stop_state import feed_each


@dataclass(slots=True)
class Work:
    """What an engine has computed so far. It depends on the requests alone, never on the clock."""

    passes: int = 0
    """Passes that read prompts."""
    prompt_tokens: int = 0
    """Tokens that these read."""
    padded_tokens: int = 0
    """The same with the padding between prompts of different lengths, and the tokens that are read
    again in its place.
    """
    shared_tokens: int = 0
    """Tokens of prompts that were not read, since they were there: prompts before them begin alike,
    or they continue a row that has ended.
    """
    shares_nothing: str = ""
    """Why prompts that begin alike, or some of them, are read whole; empty where none is."""
    steps: int = 0
    """Passes that brought rows one token further."""
    row_steps: int = 0
    """The tokens that they brought, those of rows that were done included."""
    needed_row_steps: int = 0
    """How many of them were of rows that still needed one."""
    guessed_tokens: int = 0
    """Tokens that were guessed for a row that ran alone (see `Lookup`)."""
    right_guesses: int = 0
    """How many of them were right: each saved a pass."""


@dataclass(slots=True)
class ModelTraits:
    """What was found out about a model while it ran, kept from call to call."""

    checked: bool = False
    """Its first steps were compared with transformers' plain forward, or need not be."""
    fixed: bool = False
    """Its cache is not known: rows cannot leave a batch."""
    even: bool = False
    """Its layers take no padding: only prompts of one length are read in one pass."""
    alone: bool = False
    """Its rows are read one by one."""
    scored_alone: bool = False
    """Its cache is not known, or holds states: rows are scored each by itself, in passes without a
    cache.
    """
    deterministic: bool = False
    """Rows are computed so that all they get depends on their own tokens alone, to the last bit."""
    max_tokens: int | None = None
    """How many tokens, padding included, may be cached at a time without running out of memory;
    None where it never has.
    """
    work: Work = dataclasses.field(default_factory=Work)


class _PrefilledRows(NamedTuple):
    """Prefilled sequences, and the rows that wait for a slot, each with the index of its sequence
    in the batch.
    """

    batch: RunningBatch | StaticBatch
    logits: torch.Tensor
    rows: deque[tuple[HFRow, int]]


class Schedule:
    """Rows of any number of calls, at most `size` of them running at a time, or `sharing` where
    they share what they begin with. Its steps must be run without gradients.
    """

    def __init__(
        self,
        model: Any,
        checkpoint: Checkpoint,
        size: int,
        pixels: Pixels,
        traits: ModelTraits,
        prefixes: Prefixes,
        compiled: Compiled | None = None,
        *,
        sharing: int = 0,
    ) -> None:
        self._model, self._checkpoint, self._size, self._pixels, self._traits, self._compiled = (
            model,
            checkpoint,
            1 if traits.alone else size,
            pixels,
            traits,
            compiled,
        )
        self._prefixes, self._most = prefixes, self._size
        self._sharing = 0 if traits.alone else sharing
        mixes = adapters_together(model)

        def adapter_of(row: HFRow) -> str:
            """The adapter that all rows of a pass must have; empty where they need not."""
            return "" if mixes else row.adapter

        def key(row: HFRow) -> tuple[Any, ...]:
            # those under way; of conversations the one with fewer turns, so that none ends alone
            return adapter_of(row), not row.token_ids, prefixes.turns(row), row.order

        self._adapter_of = adapter_of
        # neither holds the schedule: a cycle would keep the model until the garbage collector runs
        self._waiting = RequestQueue[HFRow](
            size, overdue=16 * size, key=key, source=lambda row: row.source
        )
        self._prefilled: _PrefilledRows | None = None
        self._running: list[HFRow] = []
        self._batch: RunningBatch | StaticBatch | None = None
        self._sampler: Sampler | None = None
        self._tokens = torch.empty(0)
        self._max_tokens, self._measured = traits.max_tokens, False
        # whether equal rows are read one by one: a pass failed, and no more may run than are read
        self._apart = False
        if traits.max_tokens is not None:
            traits.max_tokens *= 2  # what was too little then may be enough now
        self._lookup: tuple[HFRow | None, Lookup] = (None, Lookup())
        # of the running pass: its sequences, their width, and the rows that it is for
        self._load: tuple[int, int, Sequence[HFRow]] = (0, 0, ())

    def add(self, rows: Sequence[HFRow]) -> None:
        """Let rows wait for their turn."""
        apart = self._apart or self._traits.fixed or self._traits.deterministic
        self._waiting.add(rows, apart=apart)

    @property
    def rows(self) -> list[HFRow]:
        """All rows, those too that are done since the last step."""
        prefilled = [] if self._prefilled is None else [row for row, _ in self._prefilled.rows]
        # a step that broke off may have held rows that are nowhere else
        rows = (*self._running, *prefilled, *self._waiting.rows, *self._load[2])
        return list({id(row): row for row in rows}.values())

    @property
    def finished(self) -> bool:
        return not (self._active or self._prefilled or self._waiting)

    def prune(self) -> None:
        """Drop the rows that wait and are done, since their calls have left them; those that run
        are dropped by the next step.
        """
        self._waiting.prune(lambda row: row.done)

    @property
    def _going(self) -> list[HFRow]:
        return [row for row in self._running if not row.done]

    @property
    def _active(self) -> int:
        return len(self._going)

    def step(self) -> list[HFRow]:
        """Bring rows one token further, and return those that got one or failed."""
        active = self._active
        free = self._free(active)
        while free and not self._prefilled and self._waiting and self._prefill(active):
            pass  # something was found out about the model: choose again what is read together
        if free and self._prefilled and (free := self._free(active)):
            return self._insert(self._prefilled, free)
        return self._decode()

    def _free(self, active: int) -> int:
        """How many rows may run beside those that do."""
        if active and isinstance(self._batch, StaticBatch):
            return 0
        return max(0, max(self._most, self._together()) - active)

    def _together(self) -> int:
        """How many rows like those at hand, which share, hold no more columns at their ends than
        `_most` rows that share nothing; at most `sharing`.
        """
        running, prefilled = self._going, self._prefilled
        rows = running + [row for row, _ in (prefilled.rows if prefilled else ())]
        batches = [
            batch
            for batch in (self._batch if running else None, prefilled and prefilled.batch)
            if isinstance(batch, RunningBatch)
        ]
        shared = sum(batch.shared for batch in batches) if self._sharing else 0
        if not shared:
            return 0
        left = max(row.left for row in rows)
        own = max(batch.width for batch in batches) + left
        most = (self._most * (max(row.length for row in rows) + left) - shared) // own
        return int(min(most, self._sharing, (self._max_tokens or math.inf) / own))

    def _prefill(self, active: int) -> bool:
        """Read the sequences that come next, as many as fit; whether to try again, since the model
        turns out not to take these together.
        """
        width = self._batch.width if active and self._batch is not None else 0
        near = self._waiting.next(2 * self._most)
        if not near or any(
            self._adapter_of(row) != self._adapter_of(near[0][0]) for row in self._going
        ):
            return False
        adapter = self._adapter_of(near[0][0])
        near = [*takewhile(lambda source: self._adapter_of(source[0]) == adapter, near)]
        most = pass_tokens(self._model.device)

        def fits(lengths: Sequence[int], new: Sequence[int]) -> bool:
            return (
                (not self._traits.even or lengths[-1] == lengths[0])
                and group_size(new, len(new), most) == len(new)
                and self._fits(active + len(lengths), max(width, *lengths))
            )

        places, prefixes, own = self._prefixes.group(near, self._most, fits)
        chosen = [near[index] for index in places]
        longest = max(width, own)
        if active and not self._fits(active + len(chosen), longest):
            return False
        self._load = (
            active + len(chosen),
            longest,
            [row for source in chosen for row in source],
        )
        self._pixels.ahead(image for source in near for image in source[0].encoded.prompt.images)
        rows, fixed = [source[0] for source in chosen], self._traits.fixed
        result = (
            self._prefixes.read_alone(self._model, rows[0], self._count, fixed=fixed)
            if self._traits.deterministic
            else self._prefixes.prefill(self._model, rows, prefixes, self._count, fixed=fixed)
        )
        if result is None:
            self._traits.even = True
            return True
        batch, logits = result
        if isinstance(batch, StaticBatch) and self._compiled is not None:
            raise CompileFailed(
                f"the cache of {type(self._model).__name__} is not known: its steps cannot be"
                " compiled"
            )
        if isinstance(batch, StaticBatch) and not self._traits.fixed:
            # what its layers make of padding is not known either
            self._traits.fixed = self._traits.even = True
            self.requeue()
            return True
        self._waiting.take(places)
        self._load = (active + len(self._load[2]), longest, self._load[2])
        self._prefixes.fork(
            self._model, batch, {index: len(source) for index, source in enumerate(chosen)}
        )
        self._prefilled = _PrefilledRows(
            batch,
            logits,
            deque((row, index) for index, source in enumerate(chosen) for row in source),
        )
        self._measure(batch)
        return False

    def _count(self, read: Sequence[int], shared: Sequence[int]) -> None:
        work = self._traits.work
        work.passes += 1
        work.prompt_tokens += sum(read)
        work.padded_tokens += max(read) * len(read)
        work.shared_tokens += sum(shared)

    def _fits(self, sequences: int, width: int) -> bool:
        return self._max_tokens is None or sequences * width <= self._max_tokens

    def _measure(self, batch: RunningBatch | StaticBatch) -> None:
        """Once in a call, see how many tokens the free memory takes."""
        if not self._measured and isinstance(batch, RunningBatch):
            self._measured = True
            most = max_cached_tokens(batch.cache, len(batch) * batch.width, self._model.device)
            limits = [limit for limit in (most, self._max_tokens) if limit is not None]
            self._max_tokens = min(limits, default=None)

    def _insert(self, prefilled: _PrefilledRows, free: int) -> list[HFRow]:
        """Choose the first token of prefilled rows, and let those that are not done take free
        slots.
        """
        pairs = [prefilled.rows.popleft() for _ in range(min(free, len(prefilled.rows)))]
        rows, sources = [row for row, _ in pairs], [index for _, index in pairs]
        self._load = (self._active + len(rows), prefilled.batch.width, rows)
        is_all = not prefilled.rows and sources == [*range(len(prefilled.batch))]
        logits = (
            prefilled.logits
            if is_all
            else prefilled.logits[torch.tensor(sources, device=prefilled.logits.device)]
        )
        sampler = Sampler(rows, logits.shape[-1], logits.device)
        tokens = self._accept(rows, sampler, logits)
        self._keep(prefilled.batch, zip(sources, rows, strict=True))
        left = [index for index, row in enumerate(rows) if not row.done]
        if not prefilled.rows:
            self._prefilled = None
        if isinstance(prefilled.batch, StaticBatch):
            self._running, self._batch, self._sampler, self._tokens = (
                rows,
                prefilled.batch,
                sampler,
                tokens,
            )
        elif left:
            batch = (
                prefilled.batch
                if is_all and len(left) == len(rows)
                else prefilled.batch.copies([sources[index] for index in left])
            )
            self._insert_rows(
                [rows[index] for index in left],
                batch,
                tokens[torch.tensor(left, device=tokens.device)],
                sampler,
            )
        return rows

    def _insert_rows(
        self, rows: list[HFRow], batch: RunningBatch, tokens: torch.Tensor, sampler: Sampler
    ) -> None:
        """Put new rows into the slots of done ones, or into new slots."""
        slots = [index for index, row in enumerate(self._running) if row.done]
        if len(slots) < len(rows) or len(slots) == len(self._running):
            self._evict_finished()
            slots = [*range(len(self._running), len(self._running) + len(rows))]
        if not isinstance(self._batch, RunningBatch) or self._sampler is None:
            self._running, self._batch, self._tokens, self._sampler = rows, batch, tokens, sampler
        else:
            slots = slots[: len(rows)]
            if slots[0] == len(self._running):
                self._tokens = torch.cat([self._tokens, tokens])
                self._running = [*self._running, *rows]
            else:
                self._tokens[torch.tensor(slots, device=tokens.device)] = tokens
                for slot, row in zip(slots, rows, strict=True):
                    self._running[slot] = row
            self._batch.put(slots, batch)
        self._sampler.use(self._running)

    def _decode(self) -> list[HFRow]:
        """One pass for all running rows."""
        self._evict_finished(self._requeue_long())
        going = self._going
        if self._batch is None or self._sampler is None or not going:
            return []
        prefilled = 0 if self._prefilled is None else len(self._prefilled.batch)
        self._load = (len(self._batch) + prefilled, self._batch.width + 1, going)
        batch, tokens, work = self._batch, self._tokens, self._traits.work
        work.steps += 1
        # what is made of a row that is done is thrown away
        rows = (going[0] if row.done else row for row in self._running)
        use_adapters(self._model, (row.adapter for row in rows))
        if (
            len(going) == 1
            and isinstance(batch, RunningBatch)
            and (guess := self._guess(batch, going[0]))
        ):
            self._check(batch, going[0], self._sampler, guess)
            self._keep(batch, enumerate(self._running))
            return going
        logits = (
            batch.step(self._model, tokens, self._compiled)
            if isinstance(batch, RunningBatch)
            else batch.step(self._model, tokens)
        )
        work.row_steps += len(batch)
        work.needed_row_steps += len(going)
        self._tokens = self._accept(self._running, self._sampler, logits)
        self._keep(batch, enumerate(self._running))
        return going

    def _keep(self, batch: RunningBatch | StaticBatch, rows: Iterable[tuple[int, HFRow]]) -> None:
        """Let what was read and generated of rows that have just ended stay; each comes with its
        index in the batch.
        """
        for index, row in rows:
            if row.done and row.error is None and not row.dropped:
                self._prefixes.keep(self._model, row, batch, index)

    def _guess(self, batch: RunningBatch, row: HFRow) -> tuple[int, ...]:
        """What may follow the tokens of a row that runs alone; nothing where several tokens cannot
        be checked in one pass.
        """
        if (
            self._compiled is not None
            or self._traits.deterministic
            or self._checkpoint.positions.long_after is not None
            or not batch.can_check
        ):
            return ()
        if self._lookup[0] is not row:
            self._lookup = (row, Lookup())
        return self._lookup[1].guess(row.sequence, row.left - 1)

    def _check(
        self, batch: RunningBatch, row: HFRow, sampler: Sampler, guess: tuple[int, ...]
    ) -> None:
        """One pass over the row's last token and a guess: the row gets a token more than the guess
        has right ones, or fewer where it ends before.
        """
        read = batch.read(self._model, [[*self._tokens[0].tolist(), *guess]])
        count, logits = 0, read[0].to(self._tokens.device, torch.float32)
        for index, guessed in enumerate((*guess, None)):
            self._tokens, count = self._accept([row], sampler, logits[index : index + 1]), index + 1
            if row.done or row.token_ids[-1] != guessed:
                break
        batch.cut(len(guess) + 1 - count)
        self._lookup[1].right(count - 1)
        work = self._traits.work
        work.row_steps += count
        work.needed_row_steps += count
        work.guessed_tokens += len(guess)
        work.right_guesses += count - 1

    @staticmethod
    def _accept(rows: Sequence[HFRow], sampler: Sampler, logits: torch.Tensor) -> torch.Tensor:
        """Choose each row's next token, and let its fold take it."""
        tokens, choices = sampler.choose(logits)
        # a plugin may just have failed
        going = [(row, *choice) for row, choice in zip(rows, choices, strict=True) if not row.done]
        feed_each([row.fold for row, _, _ in going], [token_id for _, token_id, _ in going])
        for row, _, logprob in going:
            row.accept(logprob, logits.device)
        return tokens

    def _evict_finished(self, left: Collection[int] = ()) -> None:
        """Drop the rows that are done, and those that wait again."""
        going = [
            index for index, row in enumerate(self._running) if not row.done and index not in left
        ]
        if not going:
            self._running, self._batch, self._sampler = [], None, None
        elif (
            len(going) < len(self._running)
            and isinstance(self._batch, RunningBatch)
            and self._sampler is not None
        ):
            self._batch.keep(going)
            self._running = [self._running[index] for index in going]
            self._tokens = self._tokens[torch.tensor(going, device=self._tokens.device)]
            self._sampler.use(self._running)

    def _requeue_long(self) -> Collection[int]:
        """Let rows wait again that have just become long for LongRoPE: their cached keys have the
        short factors, and all of them need the long ones now.

        Returns their slots.
        """
        limit = self._checkpoint.positions.long_after
        if limit is None:
            return ()
        crossing = {
            index
            for index, row in enumerate(self._running)
            if not row.done and row.length == limit + 1
        }
        if crossing and isinstance(self._batch, StaticBatch):
            crossing = {index for index, row in enumerate(self._running) if not row.done}
        if crossing:
            self.add([self._running[index] for index in sorted(crossing)])
            self._waiting.put_in_order()
        return crossing

    def requeue(self) -> None:
        """Let all rows wait again, with what they have made."""
        rows = [row for row in self.rows if not row.done]
        self._running, self._batch, self._sampler, self._prefilled = [], None, None, None
        self._waiting.clear()
        self.add(rows)

    def requeue_after_oom(self) -> Sequence[HFRow]:
        """After a pass that ran out of memory: all rows wait again, and fewer may run at a time.
        Returns the rows that did not fit even alone.
        """
        sequences, width, _ = self._load
        if self._prefixes.shrink():
            self.requeue()
            return []
        if sequences > 1:
            self._max_tokens = self._traits.max_tokens = (sequences + 1) // 2 * width
        return self._halved()

    def requeue_in_halves(self) -> Sequence[HFRow]:
        """After a pass in which the model's code raised: all rows wait again, and half as many of
        them run at a time, until the one that it raised for is alone. Returns that one.
        """
        sequences = self._load[0]
        self._most = (sequences + 1) // 2 if sequences > 1 else self._size
        self._sharing = 0
        return self._halved()

    def _halved(self) -> Sequence[HFRow]:
        """All rows wait again, equal ones apart; the row that was alone in the pass is returned."""
        sequences, _, rows = self._load
        self._apart = True
        self.requeue()
        return [] if sequences > 1 else [row for row in rows if not row.done]
