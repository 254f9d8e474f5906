"""What was read stays for a while: the beginning that prompts share, and rows that have ended. A
prompt that begins with it, such as the next turn of a conversation, reads only what is new.

What is there is in a tree (see `PrefixTree`), by ids and images. Of rows that wait, several are
read in one pass, each behind a beginning of its own (see `read_behind`). They are read from so many
tokens before their ends as the one with the most new tokens has. Where others have fewer, some are
read again, which costs what padding would. A beginning that several rows share, and that is not
there, is read first, by itself. Of prompts that share in a tree, each branch is read once.

The keys and values of a token depend on the tokens before it and on its position, not on its column
or on what follows. So a row may be continued at any of its tokens. Exceptions are places within an
image, and images behind which positions are not known. In a layer with a sliding window only rows
that are shorter than the window have all their columns: longer ones do not stay.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import islice
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from pipegen.backends.checkpoint.checkpoint import Checkpoint
from pipegen.backends.hf import attention, cache as caches
from pipegen.backends.hf.hf_rows import HFRow, images_of
from pipegen.backends.hf.pixels import Pixels
from pipegen.backends.hf.prefix_tree import Marked, PrefixTree, common
from pipegen.backends.hf.row_adapters import use_adapters
from pipegen.backends.hf.running_batch import (
    Prefilled,
    RunningBatch,
    StaticBatch,
    batch_inputs,
    image_inputs,
    prefill,
    read_behind,
)
from pipegen.backends.hf.shared_columns import Chain, length_of, shared_runs
from pipegen.core.functional import groupby

LEAST = 32
"""Tokens that a beginning, or a longer one beyond a shorter one, must have."""
SAVED = 128
"""Tokens that must not be read again thanks to a beginning that is read by itself: a pass of its
own costs about as much.
"""
HELD = 128
"""Columns that rows must not hold thanks to a run that they share: each step reads one product more
for it.
"""

Source = Sequence[HFRow]
Count = Callable[[Sequence[int], Sequence[int]], object]


class Group(NamedTuple):
    """The places of sources that are read in one pass, and the lengths of beginnings of the first
    that are read before, shortest first.
    """

    places: list[int]
    lengths: tuple[int, ...]
    own: int
    """How many columns the longest row will hold of its own."""


class _PrefixRow(NamedTuple):
    """A prefix, as it is read: what `prefill` asks of a row."""

    sequence: tuple[int, ...]
    encoded: Any
    left: int
    adapter: str

    @property
    def length(self) -> int:
        return len(self.sequence)


_TEXT = SimpleNamespace(prompt=SimpleNamespace(images=()))
"""What `prefill` asks of the row of a beginning without images."""
_STATES = "the model's layers keep something else than columns, or place tokens by them"


class Prefixes:
    """What a model has read last, within `limit` bytes; 0 shares nothing. `least`, `saved` and
    `held` say what pays; with an infinite `held`, rows hold copies of what they share.
    """

    def __init__(
        self,
        limit: float,
        checkpoint: Checkpoint,
        pixels: Pixels,
        *,
        least: int = LEAST,
        saved: float = SAVED,
        held: float = HELD,
    ) -> None:
        self._checkpoint, self._pixels = checkpoint, pixels
        self._least, self._saved, self._held = least, saved, held
        self._tree = PrefixTree(limit)
        self._empty: RunningBatch | None = None
        """A batch without rows, from which batches are made; None before the first one was read."""
        self._size = 0.0
        """The bytes of a token; 0 where they are not known yet."""
        self._window: float = math.inf
        self._together = False
        """Whether rows hold together what they share, as far as is known."""
        self._off = "prefix_memory_bytes is 0" if not limit else ""
        self._long = ""
        self._most_read = 0
        """The bytes of the longest beginning that was read for several rows."""

    @functools.cached_property
    def _scaled(self) -> str:
        positions = self._checkpoint.positions
        scaled = positions.long_after is not None or positions.dynamic
        return "the positions of a prompt depend on its length" if scaled else ""

    @property
    def off(self) -> str:
        """Why nothing is shared; empty where it is."""
        return self._off or self._scaled

    @property
    def unshared(self) -> str:
        """Why nothing, or not all, is shared; empty where all is."""
        return self.off or self._long

    @property
    def bytes(self) -> int:
        """How many bytes stay."""
        return self._tree.bytes

    def takes(self, length: int) -> bool:
        """Whether a prefix of so many tokens can be shared."""
        if self.off:
            return False
        if length >= self._window:
            self._long = "a prompt is longer than the model's sliding window"
            return False
        return self._size * length <= self._tree.limit

    def group(
        self,
        sources: Sequence[Source],
        size: int,
        fits: Callable[[Sequence[int], Sequence[int]], bool],
    ) -> Group:
        """Which of these sources are read together: the first, and those after it that go with it,
        at most `size`.

        fits: whether rows that hold so many columns of their own, with so many new tokens each, are
        read in one pass.
        """
        marked = [self._marked(source[0]) for source in sources]
        starts = [0 if self.off else self._cached_length(mark) for mark in marked]
        lengths, candidates = self._shared(marked, starts)
        places: list[int] = []
        own: list[int] = []
        new: list[int] = []
        for candidate in candidates:
            length = len(marked[candidate].ids)
            own.append(length - self._held_together(marked[0], marked[candidate], lengths))
            new.append(length - starts[candidate])
            together = [marked[index] for index in (*places, candidate)]
            if not places or (fits(own, new) and self._go_together(together, new)):
                places.append(candidate)
            else:
                own.pop()
                new.pop()
            if len(places) == size:
                break
        return Group(places, lengths, max(own))

    def _held_together(self, first_row: Marked, marked: Marked, lengths: Sequence[int]) -> int:
        """How many tokens of a row others will hold with it, where these lengths of the first row
        are read before.
        """
        if not self._together or len(marked.ids) > self._window:
            return 0
        read = max(
            (length for length in lengths if self._common(first_row, marked) >= length), default=0
        )
        return max(read, self._tree.several_of(marked))

    def _cached_length(self, marked: Marked) -> int:
        """How many of a row's tokens are there and need not be read."""
        length = self._tree.length_of(marked)
        images = any(length <= first for first, _ in marked.runs)
        return 0 if length < self._least or (images and not self._reads_images) else length

    @functools.cached_property
    def _reads_images(self) -> bool:
        """Whether images may be read behind a beginning: the inputs of each depend on it alone."""
        return self._checkpoint.image_spec.kind == "grid"

    def _shared(
        self, marked: Sequence[Marked], starts: list[int]
    ) -> tuple[tuple[int, ...], list[int]]:
        """The lengths of beginnings that the first of these shares with others, and that pay; and
        which of them may be read with it. What is then there of each is added to `starts`.
        """
        everything = [*range(len(marked))]
        if self.off or len(marked) == 1:
            return (), everything
        with_first = [self._common(marked[0], other) for other in marked]
        lengths: list[int] = []
        for length in sorted({length for length in with_first[1:] if length > starts[0]}):
            more = length - (lengths[-1] if lengths else starts[0])
            rows = sum(
                other >= length > there
                for other, there in zip(with_first[1:], starts[1:], strict=True)
            )
            if length >= self._least <= more and more * rows >= self._saved and self.takes(length):
                lengths.append(length)
        later = self._read_later(marked, starts)
        sharing = [bool(lengths) and other >= lengths[-1] for other in with_first]
        for length in lengths:
            for index, other in enumerate(with_first):
                if not index or other >= length:
                    starts[index] = max(starts[index], length)
        return tuple(lengths), [
            index for index in everything if not index or sharing[index] or index not in later
        ]

    def _read_later(self, marked: Sequence[Marked], starts: Sequence[int]) -> set[int]:
        """Those that share a beginning with others that pays to be read by itself: they are read
        when it is their turn.
        """
        # whose next tokens are alike have as much there as each other
        alike = groupby(
            lambda index: marked[index].ids[: starts[index] + self._least], range(len(marked))
        )
        later: set[int] = set()
        for places in alike.values():
            if len(places) > 1:
                first = places[0]
                length = min(self._common(marked[first], marked[index]) for index in places[1:])
                more = length - starts[first]
                if (
                    more >= self._least
                    and more * (len(places) - 1) >= self._saved
                    and self.takes(length)
                ):
                    later.update(places)
        return later

    def _common(self, first: Marked, second: Marked) -> int:
        """How many tokens of both may be read once for both: all their images are among them, or
        none is.
        """
        most = min(len(first.ids), len(second.ids)) - 1
        length = min(common(first.ids, second.ids), most)
        runs = (*first.runs, *second.runs)
        if length >= max((end for _, end in runs), default=0):
            return length
        return min(length, *(first for first, _ in runs)) if self._reads_images else 0

    def _go_together(self, marked: Sequence[Marked], new: Sequence[int]) -> bool:
        """Whether all of these rows can be read from so many tokens before their ends as the one
        with the most new ones has.
        """
        longest = max(new)
        starts = [max(0, len(mark.ids) - longest) for mark in marked]
        return not any(starts) or all(
            not mark.runs or self._readable(mark, start)
            for mark, start in zip(marked, starts, strict=True)
        )

    def _readable(self, marked: Marked, start: int) -> bool:
        """Whether a row with images can be read from this token on."""
        if not self._reads_images and any(start <= first for first, _ in marked.runs):
            return False
        if start <= self._tree.length_of(marked):
            return self._tree.holds(marked, start)
        # of a beginning that is not there yet
        return start <= marked.runs[0][0] or start >= marked.runs[-1][1]

    def prefill(
        self,
        model: Any,
        rows: Sequence[Any],
        lengths: Sequence[int] = (),
        count: Count | None = None,
        *,
        fixed: bool = False,
    ) -> Prefilled | None:
        """Read the rows' sequences, but for the beginnings that are there; as `prefill` of a batch
        otherwise. `fixed` rows stay together, and share nothing.

        lengths: of beginnings of the first row that are read before, shortest first. count: is
        called for each pass with how many tokens of each row it read, and how many were there.
        """
        count = count or (lambda read, shared: None)
        if fixed:
            self._off = _STATES
        if not self.off and all(map(self.takes, lengths)):
            self._read(model, rows[0], lengths, count)
        present, read = [0] * len(rows), [row.length for row in rows]
        marked = [self._marked(row) for row in rows]
        if not self.off and self._empty is not None:
            there = [self._cached_length(mark) for mark in marked]
            new = [row.length - count for row, count in zip(rows, there, strict=True)]
            if self._go_together(marked, new):
                present, read = there, new
        longest = max(read)
        starts = [max(0, row.length - longest) for row in rows]
        images_there = any(mark.runs for mark in marked)
        chains = self._chains(model, rows, marked, starts if images_there else present)
        starts = [max(start, length_of(chain)) for start, chain in zip(starts, chains, strict=True)]
        use_adapters(model, (row.adapter for row in rows))
        if self._empty is None or not any(starts):
            result = prefill(model, rows, self._checkpoint, self._pixels, fixed=fixed)
        else:
            images = [
                image
                for row, mark, start in zip(rows, marked, starts, strict=True)
                for image, (first, _) in zip(row.encoded.prompt.images, mark.runs, strict=False)
                if first >= start
            ]
            result = read_behind(
                model,
                self._empty,
                [self._tree.beginning(*at) for at in zip(marked, starts, strict=True)],
                [row.sequence[start:] for row, start in zip(rows, starts, strict=True)],
                self._checkpoint.pad_token_id,
                self._images(model, rows, images, longest) if images else None,
                chains,
            )
        if result is not None:
            count(read, present)
        return result

    def read_alone(
        self, model: object, row: HFRow, count: Count, *, fixed: bool
    ) -> Prefilled | None:
        """Read a row as if it had never had to wait again: what it has generated since its first
        pass, or since it became long for LongRoPE, comes token by token once more.
        """
        row.read_first, limit = row.read_first or row.length, self._checkpoint.positions.long_after
        if limit is not None and row.read_first <= limit < row.length:
            row.read_first = limit + 1
        first, after = row.sequence[: row.read_first], row.sequence[row.read_first :]
        part = _PrefixRow(first, row.encoded, row.left + len(after), row.adapter)
        result = self.prefill(model, [part], (), count, fixed=fixed)
        if result is None:
            return None
        batch, logits = result
        for token in after:
            logits = batch.step(model, torch.tensor([[token]], device=logits.device))
        return batch, logits

    def _chains(
        self, model: object, rows: Sequence[Any], marked: Sequence[Marked], present: Sequence[int]
    ) -> list[Chain]:
        """What of so many of their first tokens, which are there, rows hold together."""
        self._together = self._held < math.inf and attention.reads_shared(model)
        longest = max(row.length for row in rows)
        if not (self._together and any(present)) or longest > self._window:
            return [()] * len(rows)
        beginnings = [self._tree.beginning(*at).parts for at in zip(marked, present, strict=True)]
        return shared_runs(beginnings, self._least, self._held)

    def fork(
        self, model: object, batch: RunningBatch | StaticBatch, copies: Mapping[int, int]
    ) -> None:
        """Let copies of rows of a batch, so many of each, hold together what they begin with, where
        the model's cache takes that.
        """
        if (
            not self.off
            and self._held < math.inf
            and isinstance(batch, RunningBatch)
            and attention.reads_shared(model)
            and caches.holds_columns(batch.cache)
            and batch.positions_of(0) is not None
        ):
            batch.fork(copies, self._held)

    def _images(
        self, model: Any, rows: Sequence[object], images: Sequence[Any], longest: int
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """The positions of the last so many columns of the rows, and the inputs of the images that
        are among them.
        """
        inputs = batch_inputs(rows, model, self._checkpoint, self._pixels)
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        positions = model._prepare_position_ids_for_generation(ids, inputs)
        pixels = image_inputs(self._pixels(images), ids[:, -longest:], mask[:, -longest:], model)
        return positions[..., -longest:], pixels

    def _read(self, model: object, row: Any, lengths: Sequence[int], count: Count) -> None:
        """Read those of these beginnings of a row that are not there, each behind the one before
        it.
        """
        marked = self._marked(row)
        for length in lengths:
            beginning = Marked(marked.ids[: length + 1], marked.runs)
            there = min(self._cached_length(beginning), length)
            if there == length or self.off:
                continue
            images = any(first < length for first, _ in marked.runs)
            encoded = row.encoded if images else _TEXT
            part = _PrefixRow(row.sequence[:length], encoded, row.left, row.adapter)
            result = self.prefill(model, [part], (), count)
            if result is not None:
                mark = Marked(marked.ids[:length], marked.runs if images else ())
                self._keep(model, mark, result[0], 0)
                self._most_read = max(self._most_read, int(self._size) * length)
            else:
                self._off = _STATES

    def turns(self, row: HFRow) -> int:
        """How many rows that have ended the row continues, one after another, as far as they are
        there.
        """
        return 0 if self.off or not self._tree.bytes else self._tree.turns_of(self._marked(row))

    def keep(
        self, model: object, row: HFRow, batch: RunningBatch | StaticBatch, index: int
    ) -> None:
        """Let what was read and generated of a row stay."""
        if not self.off:
            marked = self._marked(row)
            read = batch.lengths[index] if isinstance(batch, RunningBatch) else 0
            self._keep(model, Marked(marked.ids[:read], marked.runs), batch, index, ended=True)

    def _keep(
        self,
        model: object,
        marked: Marked,
        batch: RunningBatch | StaticBatch,
        index: int,
        *,
        ended: bool = False,
    ) -> None:
        """Let a sequence that is in a row of the batch stay, where the model's cache takes that."""
        # others place tokens by their columns, which change
        by_mask = getattr(model, "_supports_attention_backend", False)
        if (
            not (by_mask and isinstance(batch, RunningBatch) and caches.holds_columns(batch.cache))
            or (positions := batch.positions_of(index)) is None
        ):
            self._off = _STATES
            return
        if self._empty is None:
            self._empty = batch.emptied()
            self._size = caches.token_bytes(batch.cache)
            self._window = caches.window_of(batch.cache)
        length = len(marked.ids)
        if length >= self._least and self.takes(length):
            self._tree.put(
                marked,
                lambda first, end: batch.columns_of(index, first, end),
                positions,
                self._size,
                ended=ended,
            )

    def _marked(self, row: Any) -> Marked:
        """The row's sequence as the tree knows it: rows of two adapters have nothing in common.
        Where the images of a prompt depend on each other, they are one.
        """
        images = row.encoded.prompt.images
        if not images and not row.adapter:
            return Marked(row.sequence)
        ids: list[Hashable] = list(row.sequence)
        places = {
            is_video: iter(
                [position for position, token in enumerate(row.sequence) if token == piece]
            )
            for is_video, piece in (
                (False, self._checkpoint.image_token_id),
                (True, self._checkpoint.videos.token_id),
            )
        }
        names = images_of(row.encoded)
        runs = []
        for index, image in enumerate(images):
            positions = [*islice(places[image.is_video], image.tokens)]
            name = index, names[index] if self._reads_images else names
            for position in positions:
                ids[position] = name
            if positions:
                runs.append((positions[0], positions[-1] + 1))
        if row.adapter:  # the first may be a piece of an image
            ids[0] = row.adapter, ids[0]
        if runs and not self._reads_images:
            runs = [(runs[0][0], runs[-1][1])]
        return Marked(tuple(ids), tuple(runs))

    def shrink(self) -> bool:
        """Where the memory ran out: let all go, and keep half as much from then on. At least a
        beginning that was read for several rows still fits. Gives whether that frees anything.
        """
        there = self._tree.bytes
        self.clear()
        limit = max(there // 2, self._most_read)
        if limit >= there:
            return False
        self._tree.limit = limit
        return True

    def clear(self) -> None:
        """Let all go."""
        self._tree.clear()
        self._empty = None
