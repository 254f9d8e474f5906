"""Which rows of a call the model works on at each step.

A row that is done leaves at once, and a waiting row takes its place: its prompt is read (with those of others that come next), its first token is
chosen, and from the next pass on it rides with the others. Rows of one source are read once. Where the memory runs out, all rows go back to wait with
what they have made, and fewer ride together.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Any, NamedTuple

import torch

from pipegen.backends.checkpoint.checkpoint import Checkpoint
from pipegen.backends.hf.compiled import Compiled, CompileFailed
from pipegen.backends.hf.memory import max_cached_tokens
from pipegen.backends.hf.pixels import Pixels
from pipegen.backends.hf.plan import group_size, order
from pipegen.backends.hf.rows import HFRow
from pipegen.backends.hf.running_batch import RunningBatch, StaticBatch, prefill
from pipegen.backends.hf.sampling import Sampler
from pipegen.stages.parts.row_decoder import feed_each

__all__ = ["ModelTraits", "Schedule", "Work"]

PASS = 8192
"""Prompt tokens that are read in one pass, of several prompts."""


@dataclass(slots=True)
class Work:
    """What an engine has computed so far. It depends on the requests alone, never on the clock."""

    passes: int = 0
    """Passes that read prompts."""
    prompt_tokens: int = 0
    """Tokens that these read."""
    padded_tokens: int = 0
    """The same with the padding between prompts of different lengths."""
    steps: int = 0
    """Passes that brought rows one token further."""
    row_steps: int = 0
    """The rows of those passes, summed up."""
    needed_row_steps: int = 0
    """How many of them were of rows that still needed one."""


@dataclass(slots=True)
class ModelTraits:
    """What is found out about a model while it runs, and kept from call to call."""

    fixed: bool = False
    """Its cache is not known: rows cannot leave it."""
    even: bool = False
    """Its layers take no padding: only prompts of one length are read together."""
    room: int | None = None
    """How many tokens, padding included, its rows may hold together without running out of memory; None while it never has."""
    work: Work = dataclasses.field(default_factory=Work)


class _PrefilledRows(NamedTuple):
    """Sequences that are read, and the rows that wait for a place: each with its sequence's place in the lane."""

    lane: RunningBatch | StaticBatch
    logits: torch.Tensor
    rows: deque[tuple[HFRow, int]]


class Schedule:
    """The rows of one call on their way through the model, at most `size` of them side by side. Its steps must be run without gradients."""

    def __init__(
        self, model: Any, checkpoint: Checkpoint, rows: Sequence[HFRow], size: int, pixels: Pixels, found: ModelTraits, compiled: Compiled | None = None
    ) -> None:
        self._model, self._checkpoint, self._size, self._pixels, self._found, self._compiled = model, checkpoint, size, pixels, found, compiled
        self._rows = tuple(rows)
        self._live: list[HFRow] = []
        self._lane: RunningBatch | StaticBatch | None = None
        self._sampler: Sampler | None = None
        self._tokens = torch.empty(0)
        self._ready: _PrefilledRows | None = None
        self._waiting: deque[tuple[HFRow, ...]] = deque()
        self._room, self._measured = found.room, False
        if found.room is not None:
            found.room *= 2  # what was too little then may be enough now
        self._load: tuple[int, int, Sequence[HFRow]] = (0, 0, ())  # sequences and their width in the pass at work, and the rows that the pass is for
        self._queue()

    def _queue(self) -> None:
        """Let all rows that are not done wait, in their order, those of one source together."""
        left = [row for row in self._rows if not row.done]
        sources: dict[Any, list[HFRow]] = {}
        for position in order([row.cost for row in left]):
            row = left[position]
            sources.setdefault(id(row) if self._found.fixed else row.source, []).append(row)
        self._waiting = deque(map(tuple, sources.values()))

    @property
    def finished(self) -> bool:
        return not (self._active or self._ready or self._waiting)

    @property
    def _active(self) -> int:
        return sum(not row.done for row in self._live)

    def step(self) -> list[HFRow]:
        """Bring rows one token further, and give those that made one or failed. Where a place is free, that is the first token of waiting rows."""
        active = self._active
        free = 0 if active and isinstance(self._lane, StaticBatch) else self._size - active
        while free and not self._ready and self._waiting and self._read(active):
            pass  # something was found out about the model: choose anew what is read
        return self._admit(self._ready, free) if free and self._ready else self._decode()

    def requeue_after_oom(self) -> Sequence[HFRow]:
        """After a pass that ran out of memory: all rows wait again, and fewer ride together. Gives the rows that did not fit even alone."""
        sequences, width, rows = self._load
        self._live, self._lane, self._sampler, self._ready = [], None, None, None
        if sequences > 1:
            self._room = self._found.room = (sequences + 1) // 2 * width
        self._queue()
        return [] if sequences > 1 else [row for row in rows if not row.done]

    def _read(self, active: int) -> bool:
        """Read the sequences that come next, most of them ahead of their time: as many as may ride together, since one pass for several costs less.

        Whether it has to be tried again, since the model turns out not to take these together.
        """
        width = self._lane.width if active and self._lane is not None else 0
        next_ones = list(islice(self._waiting, self._size))
        lengths = [source[0].length for source in next_ones]
        if self._found.even:
            lengths = list(takewhile(lambda length: length == lengths[0], lengths))
        size = group_size(lengths, len(lengths), PASS)
        while size > 1 and not self._fits(active + size, max(width, *lengths[:size])):
            size -= 1
        if active and not self._fits(active + size, max(width, *lengths[:size])):
            return False
        lengths, chosen = lengths[:size], next_ones[:size]
        self._load = (active + size, max(width, *lengths), [row for source in chosen for row in source])
        self._pixels.ahead(image for source in islice(self._waiting, size + self._size) for image in source[0].encoded.prompt.images)
        made = prefill(self._model, [source[0] for source in chosen], self._checkpoint, self._pixels)
        if made is None:
            self._found.even = True
            return True
        lane, logits = made
        if isinstance(lane, StaticBatch) and self._compiled is not None:
            raise CompileFailed(f"the cache of {type(self._model).__name__} is not known: its steps cannot be compiled")
        if isinstance(lane, StaticBatch) and not self._found.fixed:
            self._found.fixed = True
            self._queue()
            return True
        for _ in chosen:
            self._waiting.popleft()
        self._ready = _PrefilledRows(lane, logits, deque((row, at) for at, source in enumerate(chosen) for row in source))
        self._measure(lane)
        work = self._found.work
        work.passes += 1
        work.prompt_tokens += sum(lengths)
        work.padded_tokens += max(lengths) * size
        return False

    def _fits(self, sequences: int, width: int) -> bool:
        return self._room is None or sequences * width <= self._room

    def _measure(self, lane: RunningBatch | StaticBatch) -> None:
        """Once in a call, see how many tokens the free memory takes."""
        if not self._measured and isinstance(lane, RunningBatch):
            self._measured = True
            room = max_cached_tokens(lane.cache, len(lane) * lane.width, self._model.device)
            self._room = room if self._room is None else self._room if room is None else min(self._room, room)

    def _admit(self, ready: _PrefilledRows, free: int) -> list[HFRow]:
        """Choose the first token of rows that are read, and let those that go on take free places."""
        taken = [ready.rows.popleft() for _ in range(min(free, len(ready.rows)))]
        rows, at = [row for row, _ in taken], [at for _, at in taken]
        self._load = (self._size - free + len(rows), ready.lane.width, rows)
        all_of_them = not ready.rows and at == [*range(len(ready.lane))]
        logits = ready.logits if all_of_them else ready.logits[torch.tensor(at, device=ready.logits.device)]
        sampler = Sampler(rows, logits.shape[-1], logits.device)
        tokens = self._accept(rows, sampler, logits)
        left = [place for place, row in enumerate(rows) if not row.done]
        if not ready.rows:
            self._ready = None
        if isinstance(ready.lane, StaticBatch):
            self._live, self._lane, self._sampler, self._tokens = rows, ready.lane, sampler, tokens
        elif left:
            lane = ready.lane if all_of_them and len(left) == len(rows) else ready.lane.copies([at[place] for place in left])
            self._insert_rows([rows[place] for place in left], lane, tokens[torch.tensor(left, device=tokens.device)], sampler)
        return rows

    def _insert_rows(self, rows: list[HFRow], lane: RunningBatch, tokens: torch.Tensor, sampler: Sampler) -> None:
        """Let new rows take the places of those that are done, or new places."""
        places = [at for at, row in enumerate(self._live) if row.done]
        if not isinstance(self._lane, RunningBatch) or self._sampler is None or len(places) == len(self._live):
            self._live, self._lane, self._tokens, self._sampler = rows, lane, tokens, sampler
            self._sampler.use(rows)
            return
        if len(places) < len(rows):
            self._evict_finished()
            places = [*range(len(self._live), len(self._live) + len(rows))]
            self._tokens = torch.cat([self._tokens, tokens])
            self._live = [*self._live, *rows]
        else:
            places = places[: len(rows)]
            self._tokens[torch.tensor(places, device=tokens.device)] = tokens
            for place, row in zip(places, rows, strict=True):
                self._live[place] = row
        self._lane.put(places, lane)
        self._sampler.use(self._live)

    def _read_anew(self) -> None:
        """Let rows wait again that have just become long for LongRoPE: their keys were made with the short factors, and now all of them need the long ones."""
        limit = self._checkpoint.positions.long_after
        crossing = {at for at, row in enumerate(self._live) if limit is not None and not row.done and row.length == limit + 1}
        if crossing and isinstance(self._lane, StaticBatch):
            crossing = {at for at, row in enumerate(self._live) if not row.done}
        self._waiting.extendleft((self._live[at],) for at in sorted(crossing, reverse=True))
        if len(crossing) == self._active:
            self._live, self._lane, self._sampler = [], None, None
        elif crossing:
            self._keep([at for at in range(len(self._live)) if at not in crossing])

    def _evict_finished(self) -> None:
        """Let rows that are done go."""
        self._keep([at for at, row in enumerate(self._live) if not row.done])

    def _keep(self, kept: list[int]) -> None:
        """Let all rows go but these."""
        if len(kept) == len(self._live) or isinstance(self._lane, StaticBatch) or self._lane is None or self._sampler is None:
            return
        self._lane.keep(kept)
        self._live = [self._live[at] for at in kept]
        self._tokens = self._tokens[torch.tensor(kept, device=self._tokens.device)]
        self._sampler.use(self._live)

    def _decode(self) -> list[HFRow]:
        """One pass for all rows that are under way."""
        self._read_anew()
        self._evict_finished()
        going = [row for row in self._live if not row.done]
        if self._lane is None or self._sampler is None or not going:
            return []
        waiting = 0 if self._ready is None else len(self._ready.lane)
        self._load = (len(self._lane) + waiting, self._lane.width + 1, going)
        lane, tokens = self._lane, self._tokens
        logits = lane.step(self._model, tokens, self._compiled) if isinstance(lane, RunningBatch) else lane.step(self._model, tokens)
        work = self._found.work
        work.steps += 1
        work.row_steps += len(self._lane)
        work.needed_row_steps += len(going)
        self._tokens = self._accept(self._live, self._sampler, logits)
        return going

    @staticmethod
    def _accept(rows: Sequence[HFRow], sampler: Sampler, logits: torch.Tensor) -> torch.Tensor:
        tokens, choices = sampler.choose(logits)
        made = [(row, *choice) for row, choice in zip(rows, choices, strict=True) if not row.done]  # a plugin may just have failed
        texts = feed_each([row.decoder for row, _, _ in made], [token_id for _, token_id, _ in made])
        for (row, _, logprob), text in zip(made, texts, strict=True):
            row.accept(text, logprob, logits.device)
        return tokens
