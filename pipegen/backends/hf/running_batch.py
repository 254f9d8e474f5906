"""The rows that a model works on side by side: their cache, their positions, and the pass that
brings each of them one token further.

transformers prepares every prompt: inputs, mask, positions and cache; it hands over through the
`custom_generate` hook of `generate`.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from transformers import GenerationConfig

from pipegen.backends.checkpoint.checkpoint import Checkpoint
from pipegen.backends.checkpoint.image_processors import IMAGE_MARKS, ImageInputs
from pipegen.backends.hf import cache as caches
from pipegen.backends.hf.cache_argument import cache_argument, cache_of, without_cache
from pipegen.backends.hf.compiled import Compiled, StaticCacheView
from pipegen.backends.hf.pixels import Pixels
from pipegen.backends.hf.prefix_tree import Beginning
from pipegen.backends.hf.shared_columns import Chain, length_of

Prefilled = tuple["RunningBatch | StaticBatch", torch.Tensor]


def prefill(
    model: Any,
    rows: Sequence[Any],
    checkpoint: Checkpoint,
    pixels: Pixels,
    *,
    fixed: bool = False,
) -> Prefilled | None:
    """Read the rows' sequences in one pass: the batch that holds them, and the logits of the next
    token, shape (rows, vocabulary), in float32. Rows of a `fixed` batch stay together.

    None, before anything is computed, where the model has layers that take no padding, and the
    sequences differ in length. The checkpoint's own generation settings play no part.
    """
    config: Any = GenerationConfig  # not annotated
    settings = config(
        do_sample=False,
        num_beams=1,
        use_cache=True,
        max_new_tokens=max(row.left for row in rows),
        pad_token_id=checkpoint.pad_token_id,
    )
    inputs = batch_inputs(rows, model, checkpoint, pixels)
    images = tuple(
        name for name in inputs if name not in ("input_ids", "attention_mask", *IMAGE_MARKS)
    )
    lengths = [row.length for row in rows]
    prefilled: Prefilled | None = model.generate(
        **inputs,
        generation_config=settings,
        custom_generate=_read,
        lengths=lengths,
        images=images,
        fixed=fixed,
    )
    return prefilled


def _read(
    model: Any,
    input_ids: torch.Tensor,
    lengths: list[int],
    images: Sequence[str],
    fixed: bool,
    **state: Any,
) -> Prefilled | None:
    """The hook: `generate` calls it with everything prepared."""
    name = cache_argument(type(model))
    if min(lengths) < max(lengths) and name is not None and caches.has_states(state.get(name)):
        return None
    for name in ("logits_processor", "stopping_criteria", "generation_config"):
        state.pop(name)
    outputs = model(
        **model.prepare_inputs_for_generation(input_ids, is_first_iteration=True, **state),
        return_dict=True,
    )
    logits = _last(outputs, input_ids)
    state = model._update_model_kwargs_for_generation(outputs, state, is_encoder_decoder=False)
    state = {
        name: value for name, value in state.items() if name not in (*images, "mm_encoder_outputs")
    }
    rope = getattr(model.base_model, "rope_deltas", None)
    name = cache_of(model, outputs, state)
    if name is not None and not fixed and can_drop_rows(name, state, rope):
        return RunningBatch(input_ids, lengths, name, state), logits
    return StaticBatch(input_ids, rope, name, state), logits


def can_drop_rows(name: str, state: dict[str, object], rope: torch.Tensor | None) -> bool:
    """Whether all that the model keeps of a row is known, the cache under its name. Rotary offsets,
    which it keeps on its module, must not be needed: they are part of the positions.
    """
    names = {name, "attention_mask", "position_ids", *IMAGE_MARKS}
    others = any(
        isinstance(value, torch.Tensor) for name, value in state.items() if name not in names
    )
    return (
        caches.is_known(state.get(name))
        and not others
        and (rope is None or "position_ids" in state)
    )


def _last(outputs: Any, like: torch.Tensor) -> torch.Tensor:
    """The logits after the last column. The logits of a whole prompt can be large: they are not
    kept.
    """
    logits: torch.Tensor = outputs.logits
    return logits[:, -1].to(dtype=torch.float32, device=like.device, copy=logits.shape[1] > 1)


class StaticBatch:
    """Rows of a model whose cache is not known: they stay together until the last of them is done,
    the others are computed and ignored. Of a model that keeps nothing each pass reads whole rows.
    """

    def __init__(
        self,
        input_ids: torch.Tensor,
        rope: torch.Tensor | None,
        cache_name: str | None,
        state: dict[str, object],
    ) -> None:
        self._ids, self._rope, self._cache_name = input_ids, rope, cache_name
        self._state = without_cache(state) if cache_name is None else state
        self.width = input_ids.shape[1]

    def __len__(self) -> int:
        return len(self._ids)

    def step(self, model: Any, tokens: torch.Tensor) -> torch.Tensor:
        """Add each row's new token, shape (rows, 1), and give the logits of the next."""
        self._ids = torch.cat([self._ids, tokens], dim=-1)
        self.width += 1
        if self._rope is not None:
            model.base_model.rope_deltas = self._rope  # another call may have run meanwhile
        prepared = model.prepare_inputs_for_generation(
            self._ids,
            next_sequence_length=None if self._cache_name is None else 1,
            **self._state,
        )
        outputs = model(**prepared, return_dict=True)
        self._state = model._update_model_kwargs_for_generation(
            outputs, self._state, is_encoder_decoder=False
        )
        if self._cache_name is None:
            self._state = without_cache(self._state)
        return _last(outputs, tokens)


class RunningBatch:
    """Rows that can leave at any step, and into whose places others can step.

    All rows end at the last column of the cache; `lengths` are their true lengths. Of a row's
    positions those of its coming column are kept.
    """

    def __init__(
        self,
        input_ids: torch.Tensor,
        lengths: Sequence[int],
        cache_name: str,
        state: dict[str, Any],
    ) -> None:
        self.lengths, self.cache_name = list(lengths), cache_name
        self.cache = caches.growing(state.pop(cache_name))
        state.pop("attention_mask", None)
        positions = state.pop("position_ids", None)
        self._positions = (
            None
            if positions is None
            else positions[..., -1:].expand(*positions.shape[:-2], len(lengths), 1)
        )
        # no generated token is a piece of an image
        self._shared = {name: value for name, value in state.items() if name not in IMAGE_MARKS}
        self._pads: torch.Tensor | None = None
        self._columns = torch.arange(0)
        self._whole: StaticCacheView | None = None
        self._window = caches.window_of(self.cache)

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def own_lengths(self) -> list[int]:
        """How many tokens of each row come behind what it shares with others."""
        return _own(self.lengths, caches.chains_of(self.cache))

    @property
    def width(self) -> int:
        """How many columns the cache has: as many as the longest row has tokens of its own."""
        return max(self.own_lengths)

    @property
    def shared(self) -> int:
        """How many tokens are held once for several rows."""
        return caches.tokens_shared(self.cache)

    def step(
        self, model: Any, tokens: torch.Tensor, compiled: Compiled | None = None
    ) -> torch.Tensor:
        """Add each row's new token, shape (rows, 1), and give the logits of the next."""
        self.stay_in_window(1)
        inputs = (
            self._shared
            if self._positions is None
            else {**self._shared, "position_ids": self._positions}
        )
        if compiled is not None:
            pads = self._own_pads()
            if self._whole is None or not self._whole.holds(self.cache, pads):
                self._whole = StaticCacheView(self.cache, pads)
            outputs = compiled.step(tokens, self._whole, self.cache_name, **inputs)
        else:
            mask = self._mask(tokens.device)
            prepared = model.prepare_inputs_for_generation(
                tokens,
                next_sequence_length=1,
                attention_mask=mask,
                **inputs,
                **{self.cache_name: self.cache},
            )
            outputs = model(**prepared, return_dict=True)
        caches.check_read(self.cache)
        if self._positions is not None:
            self._positions = self._positions + 1
        self.lengths = [length + 1 for length in self.lengths]
        return _last(outputs, tokens)

    @property
    def can_check(self) -> bool:
        """Whether tokens of the one row can be read and cut off again."""
        return len(self) == 1 and self._positions is not None and caches.sees_all(self.cache)

    def read(self, model: Any, ids: Sequence[Sequence[int]], pad: int = 0) -> torch.Tensor:
        """Add tokens to each row, padded on the right, and give the logits behind each of them, shape
        (rows, tokens, vocabulary). A row that was padded takes no more.
        """
        count = max(map(len, ids))
        self.stay_in_window(count)
        pads, width = self._own_pads(), self.width
        tokens = torch.tensor(
            [(*row, *(pad,) * (count - len(row))) for row in ids], device=model.device
        )
        mask = None
        if any(pads) or min(map(len, ids)) < count:
            mask = torch.tensor(
                [
                    [0] * left + [1] * (width - left + len(row)) + [0] * (count - len(row))
                    for left, row in zip(pads, ids, strict=True)
                ],
                device=model.device,
            )
        # 0 keeps all
        inputs = (
            {**self._shared, "logits_to_keep": 0}
            if "logits_to_keep" in self._shared
            else self._shared
        )
        if self._positions is not None:
            # padding has the last token's: the model may have none beyond it
            last = torch.tensor([[len(row) - 1] for row in ids], device=model.device)
            steps = torch.arange(count, device=model.device).minimum(last)
            inputs = {**inputs, "position_ids": self._positions + steps}
        arguments = {
            "next_sequence_length": count,
            self.cache_name: self.cache,
            "attention_mask": mask,
            "is_first_iteration": False,
        }
        outputs = model(
            **model.prepare_inputs_for_generation(tokens, **arguments, **inputs), return_dict=True
        )
        caches.check_read(self.cache)
        self._grow(count)
        logits: torch.Tensor = outputs.logits
        return logits

    def cut(self, count: int) -> None:
        """Take the last tokens of the one row off again."""
        if count:
            self._grow(-count)
            caches.cut(self.cache, self.width)

    def _grow(self, count: int) -> None:
        self.lengths, self._pads, self._whole = (
            [length + count for length in self.lengths],
            None,
            None,
        )
        self._positions = None if self._positions is None else self._positions + count

    def _mask(self, device: torch.device) -> torch.Tensor | None:
        """1 where a row has a token, the coming one included, and 0 where it is padded; None where
        all rows are of one length.
        """
        pads = self._own_pads()
        if not any(pads):
            return None
        width = self.width
        if self._pads is None:
            self._pads = torch.tensor([[pad] for pad in pads], device=device)
        if len(self._columns) <= width:
            self._columns = torch.arange(2 * width, device=device)
        return (self._columns[: width + 1] >= self._pads).long()

    def _own_pads(self) -> list[int]:
        """How many columns are padding, of each row."""
        own = self.own_lengths
        width = max(own)
        return [width - length for length in own]

    def stay_in_window(self, count: int) -> None:
        """Where a sliding window no longer covers what rows share once so many tokens are added,
        let each row hold all of its columns.
        """
        chains = caches.chains_of(self.cache)
        if chains and self._window < count + max(
            length for length, chain in zip(self.lengths, chains, strict=True) if chain
        ):
            self.cache, self._pads = caches.unshared(self.cache, self.lengths), None

    def fork(self, copies: Mapping[int, int], saved: float) -> None:
        """Let the copies of rows share all of their columns but the last, where that saves so many
        columns.

        copies: how many there will be of rows.
        """
        own = self.own_lengths
        rows = [
            row
            for row, count in copies.items()
            if (count - 1) * (own[row] - 1) >= saved and self.lengths[row] < self._window
        ]
        if rows:
            self.cache, self._pads = caches.forked(self.cache, own, rows), None

    def emptied(self) -> RunningBatch:
        """The same without rows: what `read_behind` makes batches of."""
        other = copy.copy(self)
        other.cache, other.lengths, other._pads, other._whole = (
            caches.emptied(self.cache),
            [],
            None,
            None,
        )
        if self._positions is not None:
            other._positions = self._positions[..., :0, :].clone()
        return other

    def columns_of(self, row_index: int, first: int, end: int) -> list[torch.Tensor]:
        """Copies of what is held of a row's tokens between two places."""
        return caches.columns_of(self.cache, row_index, self.lengths[row_index], first, end)

    def positions_of(self, row_index: int) -> torch.Tensor | None:
        """The positions of a row's coming column."""
        return (
            None
            if self._positions is None
            else self._positions[..., row_index : row_index + 1, :].clone()
        )

    def copies(self, row_indices: Sequence[int]) -> RunningBatch:
        """A new batch with copies of these rows; a row may be named more than once."""
        other = copy.copy(self)
        other.keep(row_indices)
        return other

    def keep(self, row_indices: Sequence[int]) -> None:
        """Go on with these rows only, and without the columns that none of them needs."""
        own = self.own_lengths
        self.lengths = [self.lengths[row] for row in row_indices]
        if self._positions is not None:
            self._positions = self._positions.index_select(
                -2, torch.tensor(row_indices, device=self._positions.device)
            )
        self.cache, self._pads, self._whole = (
            caches.selected(self.cache, row_indices, max(own[row] for row in row_indices)),
            None,
            None,
        )

    def put(self, places: Sequence[int], other: RunningBatch) -> None:
        """Put the rows of another batch into these slots: all of them slots of this batch, or all
        of them new ones after its last.
        """
        lengths, own = (
            [*before, *[0] * (max(places) + 1 - len(self))]
            for before in (self.lengths, self.own_lengths)
        )
        for slot, length, own_length in zip(places, other.lengths, other.own_lengths, strict=True):
            lengths[slot], own[slot] = length, own_length
        caches.put(self.cache, places, other.cache, max(own))
        self._positions = _with_rows(self._positions, places, other._positions)
        self._pads, self.lengths = None, lengths


def read_behind(
    model: Any,
    empty: RunningBatch,
    beginnings: Sequence[Beginning],
    new_ids: Sequence[Sequence[int]],
    pad: int,
    images: tuple[torch.Tensor, dict[str, object]] | None = None,
    chains: Sequence[Chain] = (),
) -> tuple[RunningBatch, torch.Tensor]:
    """Rows whose beginnings are there, each with tokens of its own read behind it in one pass; and
    the logits of the next token, as `prefill` gives them.

    Rows that begin alike or not have as many new tokens as the longest, but for those of which all
    that is there is shared, or nothing is: these are padded. So all end at the last column, as rows
    of a batch do.

    images: the positions of the new tokens, and the model's inputs for the images among them. It is
    None where there are none.

    chains: what each row shares of its beginning.
    """
    longest = max(map(len, new_ids))
    chains = chains or [()] * len(beginnings)
    shared = [length_of(chain) for chain in chains]
    parts = [beginning.behind(count) for beginning, count in zip(beginnings, shared, strict=True)]
    # models take an empty cache for one of a prompt that is yet to be read
    width = max(1, *_own([beginning.length for beginning in beginnings], chains))
    cache = caches.joined(empty.cache, parts, width, longest, chains)
    tokens = torch.tensor(
        [(pad,) * (longest - len(ids)) + tuple(ids) for ids in new_ids], device=model.device
    )
    batch = copy.copy(empty)
    batch.cache = cache
    batch.lengths = [
        beginning.length + len(ids) for beginning, ids in zip(beginnings, new_ids, strict=True)
    ]
    inputs, first = batch._shared, {"is_first_iteration": images is not None}
    if images is not None:
        positions, more = images
        batch._positions = positions[..., -1:] + 1
        inputs = {**inputs, **more, "position_ids": positions}
    elif batch._positions is not None:
        like = batch._positions
        starts = torch.cat([_positions_behind(beginning, like) for beginning in beginnings], dim=-2)
        counts = torch.tensor([[len(ids)] for ids in new_ids], device=starts.device)
        steps = torch.arange(longest, device=starts.device) - (longest - counts)
        inputs = {**inputs, "position_ids": starts + steps.clamp(min=0)}
        batch._positions = starts + counts
    pads = [width + longest - length for length in batch.own_lengths]
    mask = None
    if any(pads):
        mask = torch.tensor(
            [[0] * count + [1] * (width + longest - count) for count in pads], device=model.device
        )
    arguments = {
        "next_sequence_length": longest,
        batch.cache_name: cache,
        "attention_mask": mask,
        **first,
    }
    outputs = model(
        **model.prepare_inputs_for_generation(tokens, **arguments, **inputs), return_dict=True
    )
    caches.check_read(cache)
    if min(pads):
        caches.narrowed(cache, batch.width)
    return batch, _last(outputs, tokens)


def _own(lengths: Sequence[int], chains: Sequence[Chain]) -> list[int]:
    """How many tokens of rows of these lengths come behind what they share."""
    if not chains:
        return [*lengths]
    return [length - length_of(chain) for length, chain in zip(lengths, chains, strict=True)]


def _positions_behind(beginning: Beginning, like: torch.Tensor) -> torch.Tensor:
    """Those behind a row's beginning."""
    if beginning.positions is not None:
        return beginning.positions
    return like.new_full((*like.shape[:-2], 1, 1), beginning.length)


def _with_rows(
    positions: torch.Tensor | None, places: Sequence[int], other: torch.Tensor | None
) -> torch.Tensor | None:
    """The positions with other rows in these places, or, where these are new, after its own."""
    if positions is None or other is None:
        return None
    if places[0] == positions.shape[-2]:
        return torch.cat([positions, other], dim=-2)
    return positions.index_copy(-2, torch.tensor(places, device=positions.device), other)


def batch_inputs(
    rows: Sequence[Any],
    model: Any,
    checkpoint: Checkpoint,
    pixels: Callable[[Sequence[Any]], ImageInputs] | None = None,
) -> dict[str, Any]:
    """What `model.generate` takes for these rows: ids and mask, shape (rows, longest), padded on
    the left; the images of all rows in order.

    `pixels` gives the inputs of images, the checkpoint by default. Position ids are left to the
    model's own preparation, which makes them from the mask (and, for models with several rotary
    axes, from the images).
    """
    sequences = [row.sequence for row in rows]
    longest = max(map(len, sequences))
    ids = torch.tensor(
        [(checkpoint.pad_token_id,) * (longest - len(ids)) + ids for ids in sequences],
        device=model.device,
    )
    mask = torch.tensor(
        [[0] * (longest - len(ids)) + [1] * len(ids) for ids in sequences], device=model.device
    )
    images = [image for row in rows for image in row.encoded.prompt.images]
    of_images = (
        image_inputs((pixels or checkpoint.image_inputs)(images), ids, mask, model)
        if images
        else {}
    )
    return {"input_ids": ids, "attention_mask": mask, **of_images}


def image_inputs(
    inputs: ImageInputs, ids: torch.Tensor, mask: torch.Tensor, model: Any
) -> dict[str, Any]:
    """What the model takes of these inputs of images, beside these ids."""
    takes = inspect.signature(model.forward).parameters
    tensors, marked = inputs
    marks = {name: _marks(ids, of) * mask for name, of in marked.items() if name in takes}
    return marks | {
        name: _placed(name, value, model) for name, value in tensors.items() if name in takes
    }


def _marks(ids: torch.Tensor, of: Mapping[int, int]) -> torch.Tensor:
    """The mark of each id; 0 where it has none."""
    marks = torch.zeros_like(ids)
    for token_id, mark in of.items():
        marks[ids == token_id] = mark
    return marks


def _placed(name: str, value: Any, model: Any) -> Any:
    tensor = torch.as_tensor(value).to(model.device)
    # seconds are no pixels: in half precision they would be other positions
    pixels = tensor.is_floating_point() and name != "second_per_grid_ts"
    return tensor.to(model.dtype) if pixels else tensor
