"""Prompts that begin alike: the part that they share is read once, kept for a while, and copied
into each row.

A *prefix* is the beginning of several rows' sequences, with all their images in it, or with none.
Its cache holds one row. To read a row that begins with it, the cache is copied, and only the row's
own tokens go through the model. Of prompts that share in a tree (a system prompt, then examples,
then a question), each branch is read once: a longer prefix is read as the own tokens of a shorter
one.

The keys and values of a token depend on the tokens before it and on its position, not on its
column. So a prefix may stand in any column, and only where own parts differ in length it is moved
to the right, beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pipegen.backends.checkpoint.checkpoint import Checkpoint
from pipegen.backends.hf import cache as caches
from pipegen.backends.hf.pixels import ByteBoundedLRU, Pixels
from pipegen.backends.hf.rows import HFRow
from pipegen.backends.hf.running_batch import Prefilled, RunningBatch, prefill

__all__ = ["LEAST", "Prefixes", "Share", "common"]

LEAST = 32
"""Tokens that a prefix, or a longer one beyond a shorter one, must have."""
SAVED = 128
"""Tokens that must not be read again thanks to it: a pass of its own costs about as much."""

Source = Sequence[HFRow]


class Share(NamedTuple):
    """The lengths of the prefixes that the first of some sources shares with others, and the places
    of those that share the longest one, its own first.
    """

    lengths: tuple[int, ...]
    places: list[int]


class _PrefixRow(NamedTuple):
    """A prefix, as it is read: what `prefill` asks of a row."""

    sequence: tuple[int, ...]
    encoded: Any
    left: int

    @property
    def length(self) -> int:
        return len(self.sequence)


class Prefixes:
    """The last prefixes of a model that were read, within `limit` bytes; 0 shares nothing."""

    def __init__(self, limit: float, checkpoint: Checkpoint, pixels: Pixels) -> None:
        self._checkpoint, self._pixels = checkpoint, pixels
        self._kept = ByteBoundedLRU[RunningBatch](limit)
        """By their ids and images."""
        self.off = "prefix_memory_bytes is 0" if not limit else ""
        """Why nothing is shared; empty where it is."""
        self._begun = False

    def share(self, sources: Sequence[Source]) -> Share | None:
        """What the first of these sources shares with the others, or with what was read before;
        None where that does not pay.
        """
        if not self._begun:
            self._begun, positions = True, self._checkpoint.positions
            if positions.long_after is not None or positions.dynamic:
                self.off = self.off or "the positions of a prompt depend on its length"
        if self.off:
            return None
        first = sources[0][0]
        ids = first.sequence
        with_first = [
            min(self._common(first, source[0]), len(ids) - 1, source[0].length - 1)
            for source in sources
        ]
        lengths: list[int] = []
        for length in sorted({length for length in with_first[1:] if length >= LEAST}):
            more = length - (lengths[-1] if lengths else 0)
            rows = sum(
                len(source) and other >= length
                for source, other in zip(sources[1:], with_first[1:], strict=True)
            )
            if more >= LEAST and more * rows >= SAVED:
                lengths.append(length)
        kept = self._longest(first, len(ids) - 1)
        if kept > (lengths[-1] if lengths else LEAST - 1):
            lengths.append(kept)
        if not lengths:
            return None
        return Share(
            tuple(lengths),
            [
                0,
                *(
                    place
                    for place, other in enumerate(with_first)
                    if place and other >= lengths[-1]
                ),
            ],
        )

    def _common(self, first: HFRow, other: HFRow) -> int:
        length = common(first.sequence, other.sequence)
        if not (first.encoded.prompt.images or other.encoded.prompt.images):
            return length
        ends = max(self._images_end(first), self._images_end(other))
        return length if first.images == other.images and length >= ends else 0

    def _images_end(self, row: HFRow) -> int:
        """Behind which token all images of the row's prompt stand."""
        ids, piece = row.prompt_ids, self._checkpoint.image_token_id
        return next((place + 1 for place in range(len(ids) - 1, -1, -1) if ids[place] == piece), 0)

    def _longest(self, row: HFRow, most: int) -> int:
        ids = row.sequence
        return max(
            (
                len(kept)
                for kept, images in self._kept
                if len(kept) <= most and images == row.images and ids[: len(kept)] == kept
            ),
            default=0,
        )

    def prefill(
        self,
        model: Any,
        rows: Sequence[Any],
        lengths: Sequence[int],
        count: Callable[[list[int], int], object] | None = None,
    ) -> Prefilled | None:
        """Read the rows' sequences, or only what comes after the prefix that they share; as
        `prefill` of a batch otherwise.

        lengths: of the prefix, and of shorter ones that others may share, shortest first; empty
        where nothing is shared. count: is called for each pass with how many tokens it read of each
        row, and how many of each were there before.
        """
        count = count or (lambda read, shared: None)
        prefix = self._read(model, rows[0], lengths, count) if lengths else None
        if prefix is not None and not caches.can_shift(
            prefix.cache, max(row.length for row in rows)
        ):
            prefix, self.off = None, "a prompt is longer than the model's sliding window"
        if prefix is None:
            made = prefill(model, rows, self._checkpoint, self._pixels)
            if made is not None:
                count([row.length for row in rows], 0)
            return made
        own = [row.sequence[lengths[-1] :] for row in rows]
        count([*map(len, own)], lengths[-1])
        return prefix.extended(model, own, self._checkpoint.pad_token_id)

    def _read(
        self,
        model: Any,
        row: Any,
        lengths: Sequence[int],
        count: Callable[[list[int], int], object],
    ) -> RunningBatch | None:
        """The cache of the longest of these prefixes of the row; those that are not there are read,
        each from the one before it.

        None, from then on, where the cache of the model does not take it.
        """
        there = self._longest(row, lengths[-1])
        batch = self._kept.get((row.sequence[:there], row.images))
        for length in [length for length in lengths if length > there]:
            if batch is None:
                made = prefill(
                    model,
                    [_PrefixRow(row.sequence[:length], row.encoded, row.left)],
                    self._checkpoint,
                    self._pixels,
                )
                # others place tokens by their columns, which change
                by_mask = getattr(model, "_supports_attention_backend", False)
                read = made[0] if made is not None and by_mask else None
                batch = (
                    read
                    if isinstance(read, RunningBatch)
                    and read.next_inputs[0] is not None
                    and caches.can_shift(read.cache, 0)
                    else None
                )
            else:
                batch, _ = batch.extended(
                    model, [row.sequence[there:length]], self._checkpoint.pad_token_id
                )
            count([length - there], 0)
            if batch is None:
                self.off = (
                    "the model's layers keep something else than columns, or place tokens by them"
                )
                return None
            there = length
            self._kept.put((row.sequence[:length], row.images), batch, caches.size_of(batch.cache))
            self._kept.make_room(0)
        return batch

    def clear(self) -> None:
        """Let all go."""
        self._kept.clear()


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences begin with alike.

    >>> common((1, 2, 3, 4), (1, 2, 4)), common((1, 2), (1, 2, 3))
    (2, 2)
    """
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
