"""What a call that scores is made of: rows, and the contexts that they share."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

import torch

from pipegen.backends.hf.hf_rows import images_of
from pipegen.backends.hf.prefix_tree import common
from pipegen.backends.hf.prefixes import LEAST
from pipegen.records.fields import unchecked_replace
from pipegen.records.results import Encoded
from pipegen.records.scores import ScoreInput, TokenScores, likely


@dataclass(slots=True, eq=False)
class Tail:
    """One row: its continuation, and the scores that it has so far."""

    position: int
    asked: ScoreInput
    logprobs: list[float] = field(default_factory=list)
    likeliest: list[tuple[int, float]] = field(default_factory=list)
    top: list[tuple[tuple[int, float], ...]] = field(default_factory=list)

    @property
    def ids(self) -> tuple[int, ...]:
        return self.asked.continuation

    @property
    def adapter(self) -> str:
        return self.asked.encoded.options.adapter or ""

    def clear(self) -> None:
        self.logprobs, self.likeliest, self.top = [], [], []

    @property
    def scores(self) -> TokenScores:
        return TokenScores(
            continued=self.asked,
            logprobs=tuple(self.logprobs),
            likeliest=tuple(self.likeliest),
            top=tuple(self.top),
        )


@dataclass(slots=True, eq=False)
class Context:
    """A context that is read once, and the rows that continue it. It is a row to `prefill`."""

    encoded: Encoded
    tails: list[Tail] = field(default_factory=list)
    left = 1

    @property
    def sequence(self) -> tuple[int, ...]:
        return self.encoded.prompt.token_ids

    @property
    def length(self) -> int:
        return len(self.sequence)

    @property
    def images(self) -> Hashable:
        return images_of(self.encoded)

    @property
    def adapter(self) -> str:
        return self.encoded.options.adapter or ""


def columns_of(tail: Tail) -> range:
    """The places of the whole row after which a token of the continuation comes."""
    before = len(tail.asked.encoded.prompt.token_ids)
    return range(before - 1, before - 1 + len(tail.ids))


def fed(score_input: ScoreInput) -> Encoded:
    """The whole sequence but its last token, as a prompt."""
    ids = score_input.token_ids[:-1]
    return unchecked_replace(
        score_input.encoded,
        prompt=unchecked_replace(score_input.encoded.prompt, token_ids=ids, compact_token_ids=ids),
    )


def note(logits: torch.Tensor, tails: Iterable[tuple[Tail, int]]) -> None:
    """Take down the scores of tokens from the logits, shape (places, vocabulary), that were made
    before each of them.

    Of each of the tails those tokens are meant that begin at the given index, as many as there are
    places.
    """
    if not len(logits):
        return
    values = logits.float()
    sums, (highest, best) = values.logsumexp(-1), values.max(-1)
    for tail, first in tails:
        targets = torch.tensor(tail.ids[first : first + len(values)], device=values.device)
        chosen = values[: len(targets)].gather(1, targets[:, None])[:, 0]
        count = len(targets)
        tail.logprobs += (chosen - sums[:count]).tolist()
        likeliest = best[:count].where(chosen < highest[:count], targets)
        tail.likeliest += zip(
            likeliest.tolist(), (highest[:count] - sums[:count]).tolist(), strict=True
        )
        if tail.asked.top:
            tops, ids = values[:count].topk(min(tail.asked.top, values.shape[-1]))
            pairs = zip(ids.tolist(), (tops - sums[:count, None]).tolist(), strict=True)
            tail.top += [likely(zip(*pair, strict=True)) for pair in pairs]


def common_prefixes(contexts: Iterable[Context]) -> list[tuple[int, list[Context]]]:
    """Contexts in groups that begin with the same tokens, each with how many. That is at least
    `LEAST`, and less than any of them has; 0 where nothing is shared.

    Neighbours in sorted order are joined as long as that does not make fewer tokens shared.
    Contexts with images share nothing, nor do those of two adapters.
    """
    plain = sorted(
        (context for context in contexts if not context.encoded.prompt.images),
        key=lambda context: (context.adapter, context.sequence),
    )
    images = [context for context in contexts if context.encoded.prompt.images]
    groups: list[tuple[int, list[Context]]] = []
    for context in plain:
        if groups:
            prefix, group = groups[-1]
            previous, other = group[-1].sequence, context.sequence
            joined = min(
                common(previous, other), len(previous) - 1, len(other) - 1, prefix or len(previous)
            )
            alike = group[-1].adapter == context.adapter
            if alike and joined >= LEAST and joined * len(group) >= prefix * (len(group) - 1):
                groups[-1] = joined, [*group, context]
                continue
        groups.append((0, [context]))  # a group of one shares nothing yet
    single = [context for prefix, group in groups if not prefix for context in group] + images
    return [(prefix, group) for prefix, group in groups if prefix] + (
        [(0, single)] if single else []
    )
