"""Recorded rows that the reference has scored, judged together: were their tokens drawn as their
options and seeds say?
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from returns.result import Success

from pipegen.drivers.batch import run
from pipegen.drivers.route import Route
from pipegen.records.answer_parts import common_prefix
from pipegen.records.engine_list import UNKNOWN_SERVERS
from pipegen.records.option_records import GenerationOptions
from pipegen.records.option_table import names_in
from pipegen.records.options import in_effect
from pipegen.records.requests import GenerationRequest
from pipegen.records.results import GenerationResult
from pipegen.report.audit_row import has_images
from pipegen.report.drawn import Draw, deviations, draw_of, unknown_options
from pipegen.report.verdict import NoiseLimits

_TOP = 20
"""The likeliest tokens that are asked for in such a place."""
_PLACES = 600
"""So many places of rows that were drawn alike are looked at together."""
_CERTAIN = -0.01
"""Where a token is likelier, nothing else is drawn."""
_SURE = 5.0
"""So many standard deviations from what is expected are no chance."""
_EVIDENCE = 12.0
"""A natural logarithm of how much likelier something is that no right file shows."""
_SEEDED, _REPEATED = 48, 32
"""So many seeded rows are drawn again, and so many tokens of each."""
_SELDOM, _BY_ACCIDENT = 0.1, 0.002
"""At most so often does arithmetic decide where another token may be drawn, and anywhere."""
_NOT_OF_DRAWING: Mapping[str, Any] = {
    **dict.fromkeys(("chat", "preprocess", "structured", "max_thinking_tokens")),
    **dict.fromkeys(names_in("samples", "report", "fit", "defaults")),
}
"""Options that are left out where a row is drawn again."""


class ScoredRow(NamedTuple):
    """A recorded row with what the reference makes of it."""

    id: str
    request: Hashable
    """The id of its request."""
    result: GenerationResult
    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Those of the ids, by the reference."""
    likeliest: tuple[tuple[int, float], ...]
    """The reference's likeliest token in each place, with its log probability."""
    expected: tuple[int, ...] | None
    """The prompt as the reference renders it, where the request is at hand."""
    far: tuple[float, ...]
    """How far recorded log probabilities are away."""

    @property
    def options(self) -> GenerationOptions:
        return self.result.options

    @property
    def images(self) -> bool:
        return has_images(self.result)


def wrong_together(
    rows: Sequence[ScoredRow], reference: Route, far: float | None, limits: NoiseLimits
) -> str:
    """What is wrong with all rows together, though with none alone; empty where nothing is."""
    if far is not None and far > limits.spread:
        return (
            f"unknown: log probabilities are {far:.2g} away, and {limits.spread:.2g} is explained"
        )
    seeded = {  # equal ones are equal, by chance too
        (row.prompt, row.options.seed): row for row in rows if _is_repeatable(row, reference)
    }
    evidence, other = _made_again([*seeded.values()], reference, limits)
    groups = defaultdict[str, list[ScoredRow]](list)
    for row in rows:
        # what its seed gives was drawn as it should be
        if _is_drawn(row) and not (evidence < -_EVIDENCE / 2 and _is_repeatable(row, reference)):
            groups[_drawn_with(row.options)].append(row)
    for words, drawn in groups.items():
        reason = _drawn_otherwise(words, drawn, reference, limits)
        if reason:
            return f"sampling: {reason}"
    return f"sampling: {other}" if evidence > _EVIDENCE else ""


def _is_drawn(scored_row: ScoredRow) -> bool:
    """Whether the options say all of how the row's tokens were drawn."""
    options, route = scored_row.options, scored_row.result.route
    # other servers take filters in another order, and have defaults of their own
    known = route not in UNKNOWN_SERVERS and not (
        route.startswith("sglang") and len(in_effect(options, "filter")) > 1
    )
    return bool(
        known
        and options.temperature
        and scored_row.result.token_ids
        and not unknown_options(options)
        and options.max_thinking_tokens is None
        and not (options.stop is not None and options.stop.ignore_eos)
    )


def _drawn_with(options: GenerationOptions) -> str:
    """What a row was drawn with, in words."""
    names = ("temperature", *in_effect(options, "filter"))
    return " and ".join(f"{name}={getattr(options, name):g}" for name in names)


def _drawn_otherwise(
    words: str, rows: Sequence[ScoredRow], reference: Route, limits: NoiseLimits
) -> str:
    """Why these rows were not drawn with their options: how likely their tokens are together."""
    places = [
        (row, index)
        for row in rows
        for index, (_, highest) in enumerate(row.likeliest)
        if highest < _CERTAIN
        and index >= (row.options.min_new_tokens or 0)
        and index not in row.result.forced
    ]
    # the least certain ones tell most
    places = sorted(places, key=lambda place: place[0].likeliest[place[1]][1])[:_PLACES]
    draws: list[Draw] = []
    for (row, index), top in likeliest_at(places, reference):
        seed = row.options.seed
        draw = draw_of(
            row.logprobs[index],
            [logprob for _, logprob in top],
            row.options,
            reference.engine.tokenizer.vocab_size,
            slack=limits.spread,
            stream=None if seed is None else (seed, index),
        )
        draws += [] if draw is None else [draw]
    sure = deviations(draws)
    if abs(sure) <= _SURE:
        return ""
    came = math.fsum(draw.value for draw in draws) / len(draws)
    expected = math.fsum(draw.least if sure < 0 else draw.most for draw in draws) / len(draws)
    return (
        f"tokens drawn with {words} have the log probability {came:.3g} in the mean of"
        f" {len(draws)} places, and {expected:.3g} is expected"
    )


def _is_repeatable(scored_row: ScoredRow, reference: Route) -> bool:
    """Whether the reference makes the row again, token by token, by its seed."""
    result, options = scored_row.result, scored_row.options
    return bool(
        result.route == reference.engine.name == "hf"
        and options.temperature
        and options.seed is not None
        and result.token_ids
        and options.structured is None
        and options.max_thinking_tokens is None
        and not (result.forced or scored_row.images)
    )


def _made_again(
    rows: Sequence[ScoredRow], reference: Route, limits: NoiseLimits
) -> tuple[float, str]:
    """The evidence that rows are not what their seeds give, as the logarithm of how much likelier
    that makes what is seen; and in words.

    A right row may part where arithmetic decides, which is seldom, and seldomer where the likeliest
    token is surer. A row of another seed has the same token in a place by chance alone.
    """
    rows = rows[:: max(1, len(rows) // _SEEDED)][:_SEEDED]
    counts = [min(len(row.ids), _REPEATED) for row in rows]
    requests = [
        Success(
            GenerationRequest(
                prompt_token_ids=row.prompt,
                options=dataclasses.replace(
                    row.options,
                    **_NOT_OF_DRAWING,
                    max_new_tokens=count,
                    min_new_tokens=min(count, row.options.min_new_tokens or 0),
                ),
            )
        )
        for row, count in zip(rows, counts, strict=True)
    ]
    evidence, parted, judged = 0.0, 0, 0
    for row, count, slot in zip(
        rows, counts, run(reference, requests) if requests else (), strict=True
    ):
        drawn = slot.value_or(None)
        if drawn is None:
            continue
        again = drawn.token_ids[:count]
        same = common_prefix(again, row.ids[:count])
        parts = same < min(len(again), count)
        judged, parted = judged + 1, parted + parts
        temperature = row.options.temperature or 1.0
        for index, (_, highest) in enumerate(row.likeliest[: same + parts]):
            chance = _other_chance(highest, temperature)
            seldom = max(_SELDOM, 2 * limits.spread) * chance + _BY_ACCIDENT
            evidence += (
                math.log(max(chance, _BY_ACCIDENT) / seldom)
                if index == same
                else math.log((1 - chance) / (1 - seldom))
            )
    return evidence, (f"{parted} of {judged} rows, drawn again with their seeds, have other tokens")


def _other_chance(highest: float, temperature: float) -> float:
    """About how likely it is that another token than the likeliest one is drawn.

    >>> [round(_other_chance(math.log(0.6), temperature), 2) for temperature in (0.5, 1.0)]
    [0.31, 0.4]
    """
    other = math.log(max(1 - math.exp(highest), 1e-9))
    return min(0.9, 1 / (1 + math.exp(min((highest - other) / temperature, 700.0))))


def likeliest_at(
    places: Sequence[tuple[ScoredRow, int]], reference: Route
) -> Iterator[tuple[tuple[ScoredRow, int], tuple[tuple[int, float], ...]]]:
    """The likeliest tokens that the reference has in these places, where that is known."""
    places = [(row, index) for row, index in places if not row.images]
    requests = [
        {
            "prompt_token_ids": [*row.prompt, *row.ids[:index]],
            "options": {"adapter": row.options.adapter},
        }
        for row, index in places
    ]
    greedy = {
        "temperature": 0.0,
        "max_new_tokens": 1,
        "logprobs": True,
        "top_logprobs": _TOP,
        "ignore_eos": True,
    }
    for place, slot in zip(places, run(reference, requests, greedy) if places else (), strict=True):
        drawn = slot.map(lambda result: result.logprobs).value_or(None)
        if drawn:
            yield place, tuple(drawn[0].top)
