"""Log probabilities of given continuations: which passes read what, and what is made of the logits.

**Theory of operation.** A row is a context and a continuation. Its logits are needed where its
context ends and after every token of the continuation but the last; nowhere else are logits made.

- Rows with equal contexts are one *context* with several *tails*: it is read once, and its cache is
  copied for each tail.
- Contexts that begin alike (few-shot examples, a system prompt) share that *prefix*. It is read
  once, and its cache is copied for each context, as in `pipegen.backends.hf.prefixes`.
- A text row that shares its context with none is read in one pass, if its logits are few enough.
  That pass has no cache and no mask, and pads on the right.
- Tails are read in pieces. A piece has as many columns as keep the logits of a pass below `LOGITS`
  bytes, and of each row `logsumexp` is taken alone.

**Exceptions.** What a model's cache can do is found out from its first passes and remembered. Some
share no prefixes (`Prefixes.off`). With states, or an unknown cache, each row goes by itself, in
passes without a cache (`ModelTraits.scored_alone`). A row whose rotary factors change with its
length (LongRoPE) goes by itself too.

**Invariants.** Every row gets its numbers from its own tokens alone: padding is hidden by the mask,
and positions count a row's own tokens. A window that does not fit the memory is run again in
halves; a row that does not fit alone fails alone. The weights' lock is held for a pass at a time,
so that a call that generates may run in between.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, takewhile
from typing import Any

import torch
from returns.result import Failure, Success
from transformers import GenerationConfig

from pipegen.backends.checkpoint.checkpoint import Checkpoint
from pipegen.backends.checkpoint.checkpoint_engine import release
from pipegen.backends.hf import cache as caches
from pipegen.backends.hf.cache_argument import without_cache
from pipegen.backends.hf.hf_rows import group_size, pass_tokens
from pipegen.backends.hf.load import Weights, pass_failed
from pipegen.backends.hf.pixels import Pixels
from pipegen.backends.hf.prefixes import Prefixes
from pipegen.backends.hf.row_adapters import adapters_together, use_adapters
from pipegen.backends.hf.running_batch import RunningBatch, batch_inputs
from pipegen.backends.hf.scheduler import ModelTraits
from pipegen.backends.hf.scored_rows import (
    Context,
    Tail,
    columns_of,
    common_prefixes,
    fed,
    note,
)
from pipegen.core.foreign_calls import attempt
from pipegen.core.functional import groupby
from pipegen.core.slots import Slot, is_ok
from pipegen.records.scores import ScoreInput, TokenScores

LOGITS = 64 * 2**20
"""Bytes of logits, in float32, that one pass may make."""
PADDED = 48, 4096
"""So many columns of padding cost about as much as a pass of their own: on a processor, and on
other devices.
"""


class Scoring:
    """The rows of one call."""

    def __init__(
        self,
        weights: Weights,
        checkpoint: Checkpoint,
        pixels: Pixels,
        traits: ModelTraits,
        prefixes: Prefixes,
        size: int,
    ) -> None:
        self._weights, self._checkpoint, self._pixels, self._traits, self._prefixes, self._size = (
            weights,
            checkpoint,
            pixels,
            traits,
            prefixes,
            size,
        )
        self._model = weights.model()
        self._pass = pass_tokens(self._model.device)
        self._keeps = "logits_to_keep" in inspect.signature(self._model.forward).parameters
        self._max_tokens: int | None = None
        """How many tokens may be cached; None where the device does not tell."""

    def run(
        self, numbered_inputs: Sequence[tuple[int, ScoreInput]]
    ) -> Iterator[tuple[int, Slot[TokenScores]]]:
        """The rows' scores as they are done, each with the row's position. Raises `CallFailed`
        where the device fails.
        """
        together = adapters_together(self._model)
        groups = groupby(
            lambda row: "" if together else row[1].encoded.options.adapter or "", numbered_inputs
        )
        for group in groups.values():
            yield from self._run(group)

    def _run(
        self, numbered_inputs: Sequence[tuple[int, ScoreInput]]
    ) -> Iterator[tuple[int, Slot[TokenScores]]]:
        contexts: dict[object, Context] = {}
        alone: list[Tail] = []
        longest = self._checkpoint.positions.long_after
        for position, row in numbered_inputs:
            tail, context = Tail(position, row), Context(row.encoded)
            long = longest is not None and len(row.token_ids) - 1 > longest
            if long or self._traits.deterministic:
                alone.append(tail)
                continue
            # there is nothing to be read once
            alone_in_pass = position if context.length == 1 else None
            contexts.setdefault(
                (alone_in_pass, context.sequence, context.images, context.adapter), context
            ).tails.append(tail)
        shares = not (self._prefixes.off or self._traits.scored_alone)
        groups = common_prefixes(contexts.values()) if shares else [(0, [*contexts.values()])]
        flat = [
            context.tails[0]
            for prefix, group in groups
            if not prefix
            for context in group
            if self._is_flat(context)
        ]
        for batch in self._flat_batches(flat):
            yield from self._guarded(batch, self._read_flat)
        groups = [
            (prefix, [context for context in group if prefix or not self._is_flat(context)])
            for prefix, group in groups
        ]
        for prefix, group in groups:
            try:
                for window in self._windows(group, prefix):
                    yield from self._window(window, prefix)
            finally:
                self._let_go()
        for tail in alone:
            yield from self._guarded([tail], lambda tails: self._by_itself(tails[0]))

    @property
    def _vocabulary(self) -> int:
        return int(self._model.get_output_embeddings().weight.shape[0])

    def _is_flat(self, context: Context) -> bool:
        """Whether the context's row goes through `_read_flat`."""
        plain = (
            not self._checkpoint.is_vision_model and self._checkpoint.positions.long_after is None
        )
        tail = context.tails[0]
        return (
            plain
            and len(context.tails) == 1
            # at how many places a pass over the whole row makes logits
            and 4 * self._vocabulary * (len(tail.ids) if self._keeps else len(tail.asked.token_ids))
            <= LOGITS
        )

    def _flat_batches(self, tails: Sequence[Tail]) -> Iterator[list[Tail]]:
        """Rows that are read together, neighbours in length: their logits and their tokens are few
        enough.
        """
        batch: list[Tail] = []
        columns: set[int] = set()
        for tail in sorted(tails, key=lambda tail: (-len(tail.asked.token_ids), tail.position)):
            width, own_columns = len((batch or [tail])[0].asked.token_ids), columns_of(tail)
            together = len(columns.union(own_columns)) if self._keeps else width
            count = len(batch) + 1
            if batch and (
                count > self._size
                or count * width > self._pass
                or 4 * self._vocabulary * count * together > LOGITS
            ):
                yield batch
                batch, columns = [], set()
            batch.append(tail)
            columns.update(own_columns)
        if batch:
            yield batch

    def _read_flat(self, tails: list[Tail]) -> None:
        """Read whole rows in one pass, padded on the right: what comes after a token changes
        nothing of it.
        """
        columns = sorted({column for tail in tails for column in columns_of(tail)})
        position = {column: index for index, column in enumerate(columns)}
        width, pad = (
            max(len(tail.asked.token_ids) for tail in tails) - 1,
            self._checkpoint.pad_token_id,
        )
        rows = [
            (*tail.asked.token_ids[:-1], *(pad,) * (width + 1 - len(tail.asked.token_ids)))
            for tail in tails
        ]
        with self._weights.lock, torch.no_grad():
            ids = torch.tensor(rows, device=self._model.device)
            use_adapters(self._model, (tail.adapter for tail in tails))
            more = (
                {"logits_to_keep": torch.tensor(columns, device=ids.device)} if self._keeps else {}
            )
            logits = self._model(input_ids=ids, use_cache=False, return_dict=True, **more).logits
        for index, tail in enumerate(tails):
            tail_columns = columns_of(tail)
            begin = position[tail_columns[0]] if self._keeps else tail_columns[0]
            note(logits[index, begin : begin + len(tail_columns)], [(tail, 0)])

    def _windows(self, contexts: Sequence[Context], prefix: int) -> Iterator[list[Context]]:
        """The contexts, the longest first, as many together as one pass reads."""
        left = sorted(contexts, key=lambda context: -context.length)
        while left:
            present = prefix if self._prefixes.takes(prefix) else 0
            size = group_size(
                [context.length - present for context in left], self._size, self._pass
            )
            while (
                size > 1
                and self._max_tokens is not None
                and size * left[0].length > self._max_tokens // 2
            ):
                size -= 1
            yield left[:size]
            left = left[size:]

    def _window(
        self, contexts: list[Context], prefix: int
    ) -> Iterator[tuple[int, Slot[TokenScores]]]:
        tails = [tail for context in contexts for tail in context.tails]

        def work(some: list[Tail]) -> None:
            chosen = {tail.position for tail in some}
            remaining = [
                Context(
                    context.encoded, [tail for tail in context.tails if tail.position in chosen]
                )
                for context in contexts
            ]
            self._read([context for context in remaining if context.tails], prefix)

        yield from self._guarded(tails, work)

    def _guarded(
        self, tails: list[Tail], work: Callable[[list[Tail]], None]
    ) -> Iterator[tuple[int, Slot[TokenScores]]]:
        """The rows' answers after `work`; where the memory runs out, or the model's code raises,
        after each half of them.
        """
        done = attempt(lambda: work(tails))
        if is_ok(done):
            yield from ((tail.position, Success(tail.scores)) for tail in tails)
            return
        failed = pass_failed(done.failure())
        self._let_go()
        if failed.full:
            release()
        for tail in tails:
            tail.clear()
        if len(tails) == 1:
            yield tails[0].position, Failure(failed.of_row())
            return
        half = len(tails) // 2
        for part in (tails[:half], tails[half:]):
            yield from self._guarded(part, work)

    def _let_go(self) -> None:
        with self._weights.lock:
            self._prefixes.clear()

    def _read(self, contexts: list[Context], prefix: int) -> None:
        """Read contexts, all of which begin with the same `prefix` tokens, and score their
        tails.
        """
        prefilled = None if self._traits.scored_alone else self._prefilled(contexts, prefix)
        if prefilled is None:
            for tail in [tail for context in contexts for tail in context.tails]:
                self._by_itself(tail)
            return
        batch, logits = prefilled
        for index, context in enumerate(contexts):
            note(logits[index : index + 1], [(tail, 0) for tail in context.tails])
        del logits, prefilled
        self._score_tails(batch, contexts)

    def _prefilled(
        self, contexts: list[Context], prefix: int
    ) -> tuple[RunningBatch, torch.Tensor] | None:
        """The contexts in a cache, with the logits after their last tokens; None where the model's
        rows have to be read by themselves.
        """
        with self._weights.lock, torch.no_grad():
            prefilled = self._prefixes.prefill(
                self._model, contexts, (prefix,) if prefix and self._prefixes.takes(prefix) else ()
            )
        batch, logits = (None, torch.empty(0)) if prefilled is None else prefilled
        if not isinstance(batch, RunningBatch) or caches.has_states(batch.cache):
            self._traits.scored_alone = True
            return None
        if self._max_tokens is None:
            self._max_tokens = caches.max_cached_tokens(
                batch.cache, len(batch) * batch.width, self._model.device
            )
        self._prefixes.fork(
            self._model,
            batch,
            {index: len(context.tails) for index, context in enumerate(contexts)},
        )
        batch.stay_in_window(max(len(tail.ids) for context in contexts for tail in context.tails))
        return batch, logits

    def _score_tails(self, batch: RunningBatch, contexts: Sequence[Context]) -> None:
        """Read the tails behind their contexts, those of about one length together: a pass has
        little more padding than another pass would cost.
        """
        most = PADDED[self._model.device.type != "cpu"]
        left = [
            (index, tail)
            for index, context in enumerate(contexts)
            for tail in context.tails
            if len(tail.ids) > 1
        ]
        left.sort(key=lambda pair: -len(pair[1].ids))
        while left:
            width = batch.width + len(left[0][1].ids)
            size = (
                self._size
                if self._max_tokens is None
                else max(1, min(self._size, (self._max_tokens - len(batch) * batch.width) // width))
            )
            padding = accumulate(len(left[0][1].ids) - len(tail.ids) for _, tail in left[:size])
            size = sum(1 for _ in takewhile(lambda columns: columns <= most, padding))
            chosen, left = left[:size], left[size:]
            sources = [index for index, _ in chosen]
            last = not left and sources == [*range(len(batch))]
            rows = batch if last else batch.copies(sources)
            self._score_rows(rows, [tail for _, tail in chosen])

    def _score_rows(self, batch: RunningBatch, tails: list[Tail]) -> None:
        """Read tails, each behind its row of the batch, a piece at a time."""
        done = 0
        while tails:
            columns = max(1, LOGITS // (4 * self._vocabulary * len(tails)))
            pieces = [tail.ids[done : min(done + columns, len(tail.ids) - 1)] for tail in tails]
            with self._weights.lock, torch.no_grad():
                use_adapters(self._model, (tail.adapter for tail in tails))
                logits = batch.read(self._model, pieces, self._checkpoint.pad_token_id)
            for index, (tail, piece) in enumerate(zip(tails, pieces, strict=True)):
                note(logits[index, : len(piece)], [(tail, done + 1)])
            del logits
            done += max(map(len, pieces))
            going = [index for index, tail in enumerate(tails) if len(tail.ids) - 1 > done]
            if len(going) < len(tails):
                tails = [tails[index] for index in going]
                if going:
                    batch.keep(going)

    def _by_itself(self, tail: Tail) -> None:
        """Score a row in passes over all of it, without a cache: one pass for as many logits as may
        be made at a time.
        """
        ids, before = tail.ids, len(tail.asked.encoded.prompt.token_ids)
        row: object = Context(fed(tail.asked))
        size = max(1, LOGITS // (4 * self._vocabulary))
        config: Any = GenerationConfig  # not annotated
        settings = config(
            do_sample=False,
            num_beams=1,
            use_cache=False,
            max_new_tokens=1,
            pad_token_id=self._checkpoint.pad_token_id,
        )
        for first in range(0, len(ids), size):
            columns = range(before - 1 + first, before - 1 + min(first + size, len(ids)))
            with self._weights.lock, torch.no_grad():
                inputs = batch_inputs([row], self._model, self._checkpoint, self._pixels)
                use_adapters(self._model, [tail.adapter])
                logits = self._model.generate(
                    **inputs,
                    generation_config=settings,
                    custom_generate=_whole,
                    columns=columns,
                    keeps=self._keeps,
                )
            note(logits, [(tail, first)])


def _whole(
    model: Any, input_ids: torch.Tensor, columns: range, keeps: bool, **state: object
) -> torch.Tensor:
    """The hook of `generate`, which calls it with everything prepared: the logits of these columns
    of a single row.
    """
    for name in ("logits_processor", "stopping_criteria", "generation_config", "logits_to_keep"):
        state.pop(name, None)
    prepared = model.prepare_inputs_for_generation(
        input_ids, is_first_iteration=True, **without_cache(state)
    )
    if keeps:
        prepared["logits_to_keep"] = torch.arange(
            columns.start, columns.stop, device=input_ids.device
        )
    logits: torch.Tensor = model(**prepared, return_dict=True).logits[0]
    return logits if keeps else logits[columns.start : columns.stop]
