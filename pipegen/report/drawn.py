"""Were tokens drawn as their options say? One token that the options leave out shows that they were
not. Of many tokens together, how likely they are beside how likely they should be.

What may be drawn in a place is known by the reference's likeliest tokens there. What the others
have together is known within bounds.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from pipegen.records.option_records import GenerationOptions
from pipegen.records.options import in_effect

SURE = 6.0
"""So many standard deviations from what is expected are no chance."""
IMPOSSIBLE = -10.0
"""A natural log probability that is no chance."""
_LEAST_VARIANCE = 4.0
"""With less, the deviations are not those of many tokens."""
_FOLLOWED = ("top_p", "top_k", "min_p")
"""The filters that are followed here."""


class Draw(NamedTuple):
    """A token that was drawn: how likely it is, in some measure, beside what is expected."""

    value: float
    """The measure of the token."""
    least: float
    """The least that is expected."""
    most: float
    """The most that is expected."""
    variance: float
    likeliest: bool
    """Whether it is the likeliest token there."""
    chance: float
    """The log probability that the likeliest token is drawn, or more."""
    stream: Hashable = None
    """Draws of one stream may have been made with one random number; None for one of its own."""


def deviations(draws: Iterable[Draw]) -> float:
    """By how many standard deviations these tokens are likelier than expected, below 0 where they
    are less likely. It is 0 where too little is known. It is infinite where each is the likeliest
    one, and that is no chance.

    >>> some = [Draw(hit, 0.6, 0.6, 0.24, bool(hit), math.log(0.6)) for hit in [1, 1, 0, 1, 0] * 9]
    >>> abs(round(deviations(some), 9)), deviations([draw for draw in some if draw.likeliest])
    (0.0, inf)
    """
    value = least = most = 0.0
    spreads, chances = defaultdict[Hashable, float](float), dict[Hashable, float]()
    alike = True
    for place, draw in enumerate(draws):
        stream = ("its own", place) if draw.stream is None else draw.stream
        value, least, most = value + draw.value, least + draw.least, most + draw.most
        spreads[stream] += math.sqrt(draw.variance)
        chances[stream] = min(chances.get(stream, 0.0), draw.chance)
        alike = alike and draw.likeliest
    if alike:
        return math.inf if math.fsum(chances.values()) < IMPOSSIBLE else 0.0
    # draws of one stream may all be high, or low, together
    variance = math.fsum(spread * spread for spread in spreads.values())
    if variance < _LEAST_VARIANCE:
        return 0.0
    return (max(0.0, value - most) - max(0.0, least - value)) / math.sqrt(variance)


def unknown_options(options: GenerationOptions) -> list[str]:
    """The options that change what is chosen in ways that the reference does not follow."""
    drawn = in_effect(options, "tokens", "filter") if options.temperature else ()
    changed = (*in_effect(options, "bias", "penalty", "repeats"), *drawn)
    return [
        *(name for name in changed if name not in _FOLLOWED),
        *(["a form"] if options.structured is not None else []),
    ]


def surely_left(logprob: float, options: GenerationOptions) -> bool:
    """Whether a token so likely is within top_k and top_p, whatever the others are: at most 1/p
    tokens are as likely, and those above have at most 1-p.
    """
    if options.temperature != 1.0:
        return False
    share = math.exp(logprob)
    return (not options.top_k or 1 / share <= options.top_k) and (
        options.top_p in (None, 1.0) or 1 - share < (options.top_p or 1.0)
    )


def left_out(
    logprob: float,
    top: Sequence[tuple[int, float]],
    options: GenerationOptions,
    margin: float,
    vocabulary: int,
) -> str:
    """The filter that leaves out a token of this log probability, beside the likeliest ones there;
    empty where none surely does.

    >>> top = [(1, math.log(0.6)), (2, math.log(0.3)), (3, math.log(0.05))]
    >>> [
    ...     left_out(math.log(share), top, GenerationOptions(temperature=1.0, top_k=2), 0.01, 100)
    ...     for share in (0.3, 0.05)
    ... ]
    ['', 'top_k=2']
    >>> [
    ...     left_out(math.log(share), top, GenerationOptions(temperature=1.0, top_p=0.8), 0.01, 100)
    ...     for share in (0.3, 0.05)
    ... ]
    ['', 'top_p=0.8']
    """
    likelier = [value for _, value in top if value > logprob + margin]
    if options.top_k and len(likelier) >= options.top_k:
        return f"top_k={options.top_k}"
    if options.top_p in (None, 1.0) or not top:
        return ""
    temperature = options.temperature or 1.0
    highest = top[0][1]
    shares = math.fsum(math.exp((value - highest) / temperature) for _, value in top)
    _, most = _beyond([value for _, value in top], temperature, vocabulary)
    above = math.fsum(math.exp((value - highest) / temperature) for value in likelier)
    above /= shares + most
    return f"top_p={options.top_p:g}" if above * math.exp(-margin) >= (options.top_p or 1.0) else ""


def _beyond(top: Sequence[float], temperature: float, vocabulary: int) -> tuple[float, float]:
    """The least and the most that the tokens beyond the likeliest ones weigh together at that
    temperature, where the likeliest weighs 1: they have equal shares of what is left, or a few have
    as much as the last of the likeliest.

    >>> [round(weight, 3) for weight in _beyond([math.log(0.5), math.log(0.25)], 0.5, 102)]
    [0.003, 0.25]
    >>> _beyond([math.log(0.5), math.log(0.25)], 1e-6, 102)
    (0.0, 0.0)
    """
    rest, count = max(0.0, 1 - math.fsum(map(math.exp, top))), vocabulary - len(top)
    if not rest or count < 1:
        return 0.0, 0.0
    equal = count * math.exp((math.log(rest / count) - top[0]) / temperature)
    few = rest * math.exp((top[-1] - top[0]) / temperature - top[-1])
    return min(equal, few), max(equal, few)


def draw_of(
    logprob: float,
    top: Sequence[float],
    options: GenerationOptions,
    vocabulary: int,
    *,
    slack: float,
    stream: Hashable = None,
) -> Draw | None:
    """A token of this log probability beside the likeliest ones in its place, as temperature and
    filters leave them. None where a filter ends so near to a token that it may leave it or not.

    >>> top, half = [math.log(0.6), math.log(0.3)], GenerationOptions(temperature=1.0, top_p=0.5)
    >>> draw_of(top[1], top, half, 3, slack=0.01).most == top[0]
    True
    """
    temperature, kept, floor = options.temperature or 1.0, [*top], top[-1]
    least, most = _beyond(top, temperature, vocabulary)
    limit, share, edge = options.top_k or 0, options.top_p or 1.0, 0.0
    if limit:
        left = max(0, limit - len(top))
        least = least * min(1.0, left / max(1, vocabulary - len(top)))
        most = min(most, left * math.exp((floor - top[0]) / temperature))
        kept = kept[:limit]
    if options.min_p:
        edge = top[0] + temperature * math.log(options.min_p)
        if any(abs(value - edge) <= slack for value in kept):
            return None
        least, most = 0.0, most if edge < floor else 0.0
        kept = [value for value in kept if value > edge]
    weights = [math.exp((value - top[0]) / temperature) for value in kept]
    if share < 1.0:
        counts = {
            next((count for count, part in enumerate(accumulate(weights), 1) if part >= goal), None)
            for goal in (
                share * (1 - slack) * (math.fsum(weights) + least),
                share * (1 + slack) * (math.fsum(weights) + most),
            )
        }
        (count, *others) = counts
        if others or count is None:
            return None
        weights, least, most = weights[:count], 0.0, 0.0
    means, variances = [], []
    for beyond in (most, least):
        total = math.fsum(weights) + beyond
        pairs = [(weight / total, value) for weight, value in zip(weights, kept, strict=False)]
        pairs.append((beyond / total, floor))
        means.append(math.fsum(part * value for part, value in pairs))
        variances.append(math.fsum(part * (value - means[-1]) ** 2 for part, value in pairs))
    return Draw(
        max(logprob, floor),
        min(means),
        max(means),
        max(variances),
        logprob >= top[0],
        math.log(weights[0] / (math.fsum(weights) + least)),
        stream,
    )
