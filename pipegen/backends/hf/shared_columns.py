"""Beginnings that rows share: their keys and values are held once, and each pass reads them once.

A row of a batch holds only the columns behind what it shares. The attention of all rows over a
shared part is one matrix product, over their own columns another. The two are joined by the
log-sum-exp of their scores, which gives the sums over all columns. (Hydragen, Juravsky et al. 2024;
cascade attention, Ye et al. 2024.)

What a row shares is a chain of runs: columns of parts of the prefix tree, from its first token on.
Rows of one chain, of several, and rows without any are in one batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

_SCORES = 64 * 2**20
"""Bytes of scores, in float32, that are made at a time where torch has no kernel that gives their
log-sum-exp.
"""
_NAME = "pipegen_shared"
"""The attribute of keys that says what their rows share."""
_LEAST = -1e30
"""A score of what is hidden: an infinite one would make no number of a query that sees nothing."""


class KeyValues:
    """Keys and values of a run of tokens, of shape (heads, tokens, size), two tensors a layer.

    `several`: whether it was read for several rows, so that more are likely to come.
    """

    __slots__ = ("columns", "several")

    def __init__(self, columns: list[torch.Tensor], *, several: bool = False) -> None:
        self.columns, self.several = columns, several

    def split(self, first: int, end: int | None) -> KeyValues:
        """The tokens between two places, in tensors of their own, so that each can go."""
        return KeyValues(
            [tensor[:, first:end].clone() for tensor in self.columns], several=self.several
        )


class ColumnSpan(NamedTuple):
    """The columns between two places of a part."""

    part: KeyValues
    first: int
    end: int


Chain = tuple[ColumnSpan, ...]


def length_of(chain: Chain) -> int:
    """How many tokens a row shares."""
    return sum(run.end - run.first for run in chain)


def shared_runs(
    beginnings: Sequence[Sequence[tuple[KeyValues, int]]], least: int, saved: float
) -> list[Chain]:
    """What each row shares with others of these, or is likely to share with later ones.

    beginnings: the parts that each row begins with, each with how many of its columns are meant.

    least: the tokens of a run that later rows may share. saved: the columns that must not be held
    thanks to a run of these rows alone.
    """
    chains: list[Chain] = [()] * len(beginnings)
    going, depth = [*range(len(beginnings))], 0
    while going:
        of_part: dict[KeyValues, list[tuple[int, int]]] = {}
        for row in going:
            if depth < len(beginnings[row]):
                part, count = beginnings[row][depth]
                of_part.setdefault(part, []).append((count, row))
        going = []
        for part, users in of_part.items():
            first = 0
            for end in sorted({count for count, _ in users}):
                sharing = [row for count, row in users if count >= end]
                held = (len(sharing) - 1) * (end - first)
                if held < saved and not (part.several and end - first >= least):
                    break
                part.several = part.several or len(sharing) > 1
                for row in sharing:
                    chains[row] = (*chains[row], ColumnSpan(part, first, end))
                first = end
            going += [row for count, row in users if count == first]
        depth += 1
    return chains


class SharedKeys:
    """What the rows of one layer share: keys and values of shape (heads, columns, size), with the
    rows that share them; None stands for all rows in their order.
    """

    def __init__(
        self, parts: Sequence[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]]
    ) -> None:
        self.parts = parts
        self.read = False
        """Whether the attention of the pass has read them."""

    def beside(self, keys: torch.Tensor) -> torch.Tensor:
        """The rows' own keys, by which the attention finds what they share."""
        self.read = False
        setattr(keys, _NAME, self)
        return keys


def shared_of(keys: torch.Tensor) -> SharedKeys | None:
    """What the rows of these keys share; None where they share nothing."""
    shared: SharedKeys | None = getattr(keys, _NAME, None)
    return shared


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float | None,
    shared: SharedKeys,
) -> torch.Tensor:
    """The attention of each row over what it shares and over its own columns, shape (rows, queries,
    heads, size); all queries see all that their rows share.

    mask: of the own columns, the same for all heads; without one, a query sees all but the columns
    of those behind it.
    """
    rows, heads, queries, size = query.shape
    key_heads = key.shape[1]
    group = heads // key_heads
    shared.read = True
    if mask is None and queries > 1:
        columns = torch.ones(queries, key.shape[-2], dtype=torch.bool, device=key.device)
        mask = columns.tril(key.shape[-2] - queries)[None, None]
    if mask is not None:
        if mask.dtype == torch.bool:
            mask = torch.zeros(mask.shape, dtype=query.dtype, device=mask.device).masked_fill_(
                ~mask, -torch.inf
            )
        if queries > 1 and group > 1:
            mask = mask.repeat(1, 1, group, 1)
    # the query heads that share a key head stand beside each other
    beside = query.reshape(rows, key_heads, group * queries, size)
    out, sums = _with_sums(beside, key, value, mask, scale)
    for keys, values, index in shared.parts:
        of_part = beside if index is None else beside[index]
        own, own_sums = (out, sums) if index is None else (out[index], sums[index])
        # those of all rows behind each other, as if they were one row's
        merged = of_part.transpose(0, 1).reshape(1, key_heads, -1, size)
        part, part_sums = _with_sums(merged, keys[None], values[None], None, scale)
        part = part.reshape(key_heads, len(own), group * queries, -1).transpose(0, 1)
        part_sums = part_sums.reshape(key_heads, len(own), group * queries).transpose(0, 1)
        weight = torch.sigmoid(part_sums - own_sums)[..., None]
        own = torch.lerp(own, part, weight)
        own_sums = torch.logaddexp(own_sums, part_sums)
        if index is None:
            out, sums = own, own_sums
        else:
            out, sums = out.index_copy(0, index, own), sums.index_copy(0, index, own_sums)
    out = out.reshape(rows, heads, queries, value.shape[-1]).transpose(1, 2)
    return out.to(query.dtype).contiguous()


def _with_sums(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention and the log-sum-exp of each query's scores, of which the parts are joined: shapes
    (rows, heads, queries, size) and (rows, heads, queries), in float32 or float64.
    """
    kernel = _kernel(query, key, value, mask)
    if kernel is not None:
        out, sums, *_ = kernel(query, key, value, scale=scale)
        return out.to(sums.dtype), sums
    factor: float = query.shape[-1] ** -0.5 if scale is None else scale
    rows, heads, queries, _ = query.shape
    most = max(1, _SCORES // (4 * rows * heads * key.shape[-2]))
    kind = torch.promote_types(query.dtype, torch.float32)
    outs, all_sums = [], []
    for first in range(0, queries, most):
        scores = (query[:, :, first : first + most] @ key.transpose(-1, -2)).to(kind) * factor
        if mask is not None:
            of_piece = mask if mask.shape[-2] == 1 else mask[..., first : first + most, :]
            scores = scores + of_piece.clamp(min=_LEAST)
        sums = scores.logsumexp(-1)
        weights = (scores - sums[..., None]).exp().to(value.dtype)
        outs.append((weights @ value).to(kind))
        all_sums.append(sums)
    return torch.cat(outs, dim=2), torch.cat(all_sums, dim=2)


def _kernel(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
) -> Callable[..., tuple[torch.Tensor, ...]] | None:
    """torch's flash attention, which gives the log-sum-exp too. A CPU has one for all; that of a
    GPU takes half precision, no mask, and sizes that are multiples of eight.
    """
    size = query.shape[-1]
    if size != value.shape[-1]:
        return None
    if query.device.type == "cpu":
        return functools.partial(
            torch.ops.aten._scaled_dot_product_flash_attention_for_cpu, attn_mask=mask
        )
    if query.device.type == "cuda" and mask is None and size % 8 == 0:
        asked = torch.backends.cuda.SDPAParams(query, key, value, None, 0.0, False, False)
        if torch.backends.cuda.can_use_flash_attention(asked):
            return torch.ops.aten._scaled_dot_product_flash_attention
    return None
