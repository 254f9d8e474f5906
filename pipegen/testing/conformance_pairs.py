"""Conformance checks of what holds alone and may not hold beside something else: two stops, two
filters, rows that ask for different things, odd seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipegen.drivers.batch import run
from pipegen.drivers.route import Route
from pipegen.records.option_table import OPTIONS, names_in
from pipegen.records.options import StopOptions
from pipegen.records.results import GenerationResult, TokenLogprob
from pipegen.testing.ask import (
    LENGTH,
    PROMPTS,
    answers,
    chat,
    engine_output,
    expect,
    full,
    greedy,
    honours,
    longest,
    output,
    refused,
    runs_on,
    same,
    to_all,
)

__all__ = ["CHECKS"]

HOT = 2.0
NARROW: dict[str, Any] = {name: OPTIONS[name].row.trial for name in names_in("filter")}
"""Filters that leave the likeliest token only."""
WIDE: dict[str, Any] = {"top_k": 50, "top_p": 0.999, "min_p": 0.0001}
"""Filters that leave nearly everything."""


def each_of_several_stops_halts(route: Route) -> None:
    """The engine ends the row at any of its stops, whatever their order and kind."""
    if not honours(route, "token_ids"):
        return
    request, free = longest(route)
    ignore, length = runs_on(free), 4 * LENGTH
    all_ids = engine_output(
        route, request, greedy(max_new_tokens=length, stop=StopOptions(ignore_eos=ignore))
    ).token_ids
    if len(all_ids) <= LENGTH:
        return
    token, text = free.token_ids[len(free.token_ids) // 2], free.text[1:4]
    absent = next(
        token_id for token_id in range(route.engine.tokenizer.vocab_size) if token_id not in all_ids
    )
    ways: list[tuple[str, dict[str, Any]]] = []
    if honours(route, "stop_token_ids"):
        ways += [
            ("stop_token_ids", {"stop_token_ids": pair})
            for pair in ((token, absent), (absent, token))
        ]
    if honours(route, "stop"):
        ways += [
            ("stop", {"stop": pair}) for pair in ((text, "\u0007 never"), ("\u0007 never", text))
        ]
    if honours(route, "stop_token_ids") and honours(route, "stop"):
        ways += [
            ("stop", {"stop": (text,), "stop_token_ids": (absent,)}),
            ("stop_token_ids", {"stop": ("\u0007 never",), "stop_token_ids": (token,)}),
        ]
    for name, stops in ways:
        count = len(
            engine_output(
                route,
                request,
                greedy(max_new_tokens=length, stop=StopOptions(ignore_eos=ignore, **stops)),
            ).token_ids
        )
        expect(
            count < len(all_ids),
            f"{name}: the engine does not halt at one of several stops ({stops}), and generates"
            f" {count} tokens",
        )


def filters_hold_beside_each_other(route: Route) -> None:
    """A narrow filter leaves the greedy token only, whatever wide one is beside it."""
    if not honours(route, "temperature"):
        return
    greedy_outputs = [output(result) for result in to_all(route, full(route))]
    for name, other in (
        (name, other)
        for name in NARROW
        for other in WIDE
        if name != other and honours(route, name) and honours(route, other)
    ):
        options = full(route, temperature=HOT, **{name: NARROW[name], other: WIDE[other]})
        outputs = [output(result) for result in to_all(route, options)]
        expect(
            outputs == greedy_outputs,
            f"{name}: {name}={NARROW[name]} is ignored beside {other}={WIDE[other]}",
        )


def any_seed_is_one(route: Route) -> None:
    """0 is a seed as any other, and seeds that differ in a high bit only draw apart.

    Up to the 32nd bit: the generator of torch on a CPU makes nothing of those above.
    """
    if not (
        honours(route, "seed") and honours(route, "repeatable") and honours(route, "temperature")
    ):
        return

    def drawn(seed: int) -> list[GenerationResult]:
        return answers(
            run(route, [chat(text, greedy(temperature=HOT, seed=seed)) for text in PROMPTS])
        )

    expect(
        all(map(same, drawn(0), drawn(0))),
        "seed: a row that is asked twice with the seed 0 gives two answers",
    )
    near, far = drawn(1), drawn(1 + 2**31)
    expect(
        not all(map(same, near, far)),
        "seed: the seeds 1 and 2147483649 draw the same for every prompt",
    )


def a_drawn_tokens_logprob_is_its_own(route: Route) -> None:
    """At a high temperature too, where it is seldom the likeliest; the likeliest ones are all
    different, and in order.
    """
    if not (
        honours(route, "logprobs") and honours(route, "temperature") and honours(route, "token_ids")
    ):
        return
    slots = run(
        route,
        [chat(text) for text in PROMPTS],
        greedy(temperature=HOT, logprobs=True, top_logprobs=3),
    )
    if any(refused(slot, "logprobs") or refused(slot, "top_logprobs") for slot in slots):
        return
    for result in answers(slots):
        for entry in result.logprobs or ():
            _own(entry)


def _own(entry: TokenLogprob) -> None:
    values = [value for _, value in entry.top]
    expect(values == sorted(values, reverse=True), f"top_logprobs: they are not in order: {values}")
    expect(
        len({token_id for token_id, _ in entry.top}) == len(entry.top),
        "top_logprobs: a token is among the likeliest twice",
    )
    listed = dict(entry.top).get(entry.token_id)
    if listed is not None:
        expect(
            abs(entry.logprob - listed) < 1e-3,
            f"logprobs: token {entry.token_id} has {entry.logprob}, and {listed} among the"
            " likeliest",
        )
    elif values:
        expect(
            entry.logprob < values[-1] + 1e-3,
            f"logprobs: token {entry.token_id} is not among the likeliest, and has {entry.logprob},"
            f" above {values[-1]}",
        )


def rows_get_the_logprobs_that_they_ask_for(route: Route) -> None:
    """Beside rows that ask for none, or for another number."""
    if not honours(route, "logprobs"):
        return
    options: Sequence[dict[str, Any]] = (
        {},
        {"logprobs": True},
        {"logprobs": True, "top_logprobs": 2},
        {},
    )
    slots = run(
        route, [chat(text, greedy(**more)) for text, more in zip(PROMPTS, options, strict=True)]
    )
    if any(refused(slot, "logprobs") or refused(slot, "top_logprobs") for slot in slots):
        return
    for result, more in zip(answers(slots), options, strict=True):
        has = result.logprobs is not None
        expect(
            has == bool(more),
            f"logprobs: a row that asks for {more or 'none'} beside others has"
            f" {'some' if has else 'none'}",
        )
        if "top_logprobs" in more:
            expect(
                all(len(entry.top) == 2 for entry in result.logprobs or ()),
                "top_logprobs: a row beside others does not get the number that it asks for",
            )


CHECKS = (
    each_of_several_stops_halts,
    filters_hold_beside_each_other,
    any_seed_is_one,
    a_drawn_tokens_logprob_is_its_own,
    rows_get_the_logprobs_that_they_ask_for,
)
