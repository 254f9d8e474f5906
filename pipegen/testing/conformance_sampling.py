"""Conformance checks of sampling: of each option, and of what may not hold beside another option,
another row or an odd seed. What an option must do is derived from the engine's greedy answers; each
message begins with the option's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile

from pipegen.answer.barred import barred_in, spellings
from pipegen.core.functional import partition_all
from pipegen.core.slots import Slot
from pipegen.drivers.batch import run
from pipegen.drivers.route import Route
from pipegen.records.option_table import OPTIONS, names_in
from pipegen.records.results import GenerationResult, TokenLogprob
from pipegen.testing.ask import (
    LENGTH,
    PROMPTS,
    answers,
    chat,
    expect,
    expect_same,
    full,
    greedy,
    honours,
    needs,
    output,
    refused,
    same,
    slots_of,
    to_all,
)

HOT, COLD = 2.0, 0.01
"""Temperatures at which few answers, and nearly all answers, are the greedy ones."""
SEEDS = (1, 2, 3, 4)
NARROW: dict[str, object] = {name: OPTIONS[name].row.trial for name in names_in("filter")}
"""Filters that leave the likeliest token only."""
WIDE: dict[str, object] = {"top_k": 50, "top_p": 0.999, "min_p": 0.0001}
"""Filters that leave nearly everything."""


def _greedy(route: Route, **more: object) -> list[GenerationResult]:
    return to_all(route, full(route, **more))


def _drawn(route: Route, temperature: float = HOT, **more: object) -> list[GenerationResult]:
    """Each prompt with each seed, prompt by prompt; without seeds if the engine takes none."""
    seeds: Sequence[int | None] = SEEDS if honours(route, "seed") else (None,) * len(SEEDS)
    rows = [
        chat(text, full(route, temperature=temperature, seed=seed, **more))
        for text in PROMPTS
        for seed in seeds
    ]
    return answers(run(route, rows))


def _outputs(results: Iterable[GenerationResult]) -> list[tuple[int, ...] | str]:
    return [*map(output, results)]


def _beside_greedy(
    route: Route, drawn: Sequence[GenerationResult]
) -> list[tuple[tuple[int, ...] | str, tuple[int, ...] | str]]:
    """Each drawn answer behind the greedy one."""
    greedy_outputs = [expected for expected in _outputs(_greedy(route)) for _ in SEEDS]
    return [*zip(greedy_outputs, _outputs(drawn), strict=True)]


def _as_greedy(route: Route, drawn: Sequence[GenerationResult]) -> int:
    """How many of the drawn answers are the greedy ones."""
    return sum(expected == seen for expected, seen in _beside_greedy(route, drawn))


def _followed(route: Route, drawn: Sequence[GenerationResult]) -> float:
    """The share of the greedy answers that the drawn ones begin with, from 0 to 1; they may part at
    a near tie.
    """
    pairs = _beside_greedy(route, drawn)
    shared = sum(
        1
        for expected, seen in pairs
        for _ in takewhile(lambda pair: pair[0] == pair[1], zip(expected, seen, strict=False))
    )
    return shared / max(1, sum(len(expected) for expected, _ in pairs))


@needs("temperature")
def temperature_is_honoured(route: Route) -> None:
    """Hot rows are not all greedy, and cold ones agree with the greedy ones longer."""
    rows = len(PROMPTS) * len(SEEDS)
    drawn = _drawn(route)
    expect(
        _as_greedy(route, drawn) < rows,
        f"temperature: all {rows} answers at temperature {HOT} are the greedy ones, so nothing is"
        " sampled",
    )
    hot, cold = _followed(route, drawn), _followed(route, _drawn(route, COLD))
    message = (
        f"temperature: answers follow the greedy ones for {hot:.0%} at temperature {HOT}, and for"
        f" {cold:.0%} at {COLD}, so its value is ignored"
    )
    expect(cold > max(hot, 0.5), message)


def filters_leave_the_likeliest_token(route: Route) -> None:
    """The narrowest `top_k`, `top_p` and `min_p` leave the greedy token only."""
    for name in names_in("filter"):
        value = OPTIONS[name].row.trial
        if not honours(route, name):
            continue
        expect(
            honours(route, "temperature"),
            f"{name}: it is claimed without temperature, where nothing is sampled and there is"
            " nothing to narrow",
        )
        narrowed = _drawn(route, **{name: value})
        equal = _as_greedy(route, narrowed)
        expect(
            equal == len(narrowed),
            f"{name}: with {name}={value} only {equal} of {len(narrowed)} sampled answers are the"
            " greedy ones",
        )
    if honours(route, "allowed_token_ids") and honours(route, "token_ids"):
        allowed = sorted({token_id for result in _greedy(route) for token_id in result.token_ids})[
            :3
        ]
        others = {
            token_id
            for result in _greedy(route, allowed_token_ids=allowed)
            for token_id in result.token_ids
        } - {*allowed}
        expect(
            not others,
            f"allowed_token_ids: {sorted(others)} were generated, and only {allowed} are allowed",
        )


@needs("seed", "temperature")
def seeds_draw_apart(route: Route) -> None:
    """Rows of one prompt with different seeds are not all equal."""
    rows = [set(row) for row in partition_all(len(SEEDS), _outputs(_drawn(route)))]
    expect(any(len(row) > 1 for row in rows), f"seed: the seeds {SEEDS} all give the same answers")


def samples_are_drawn_apart(route: Route) -> None:
    """As many completions as requested, and not all the same if the engine samples."""
    hot: dict[str, object] = {"temperature": HOT} if honours(route, "temperature") else {}
    if honours(route, "seed"):
        hot["seed"] = 1
    results = to_all(route, full(route, samples=3, **hot))
    for result in results:
        expect(
            len(result.completions) == 3 and all(answers(result.completions)),
            f"samples: {len(result.completions)} completions, and 3 were asked for",
        )
    if hot:
        expect(
            any(len({*_outputs(result.samples)}) > 1 for result in results),
            "samples: the samples of each prompt are all equal",
        )


def penalties_count_what_was_written(route: Route) -> None:
    """Each penalty changes answers; with logprobs, each token is the best one after the penalty."""
    for name in names_in("penalty"):
        value = OPTIONS[name].row.trial
        if not honours(route, name):
            continue
        # a model may be too sure of its greedy answers to change them
        ways = (_greedy, _drawn) if honours(route, "temperature") else (_greedy,)
        changed = any(_outputs(way(route, **{name: value})) != _outputs(way(route)) for way in ways)
        expect(changed, f"{name}: no answer changes with {name}={value}")
        if (
            name != "repetition_penalty"
            and honours(route, "top_logprobs")
            and honours(route, "token_ids")
        ):
            _penalised(route, name, value)


def _penalised(route: Route, name: str, value: float) -> None:
    """Logprobs are before penalties, so the effect of a subtracted penalty is known. (That of a
    division depends on the logits.)
    """
    # vLLM servers before 0.33 give no more of them besides the drawn token
    options = full(route, logprobs=True, top_logprobs=19, **{name: value})
    slots = slots_of(route, options)
    if any(refused(slot, "logprobs") for slot in slots):
        return
    for result in answers(slots):
        for step, entry in enumerate(result.logprobs or ()):
            written = result.token_ids[:step]
            expect(bool(entry.top), "top_logprobs: the likeliest tokens are missing")

            def after(token_id: int, logprob: float, written: Sequence[int] = written) -> float:
                count = written.count(token_id)
                return logprob - value * (count if name == "frequency_penalty" else min(count, 1))

            best = max(after(token_id, logprob) for token_id, logprob in entry.top)
            expect(
                after(entry.token_id, entry.logprob) > best - 0.01,
                f"{name}: token {step} is not the likeliest one after {name}={value}",
            )


def no_sequence_of_tokens_comes_twice(route: Route) -> None:
    """`no_repeat_ngram_size` of 1 and 2: no token, and no pair of tokens, occurs twice."""
    name = "no_repeat_ngram_size"
    if not honours(route, name) or not honours(route, "token_ids"):
        return
    for size in (1, 2):
        for result in _greedy(route, **{name: size}):
            sequences = [
                result.token_ids[start : start + size]
                for start in range(len(result.token_ids) + 1 - size)
            ]
            expect(
                len(set(sequences)) == len(sequences),
                f"{name}: a sequence of {size} comes twice within {LENGTH} tokens",
            )


@needs("bad_words", "token_ids")
def barred_words_do_not_come(route: Route) -> None:
    """No spelling of a word in `bad_words` is in an answer: of one token, or of several."""
    tokenizer = route.engine.tokenizer
    for count in (1, 2):
        pieces = [
            (result.token_ids, tokenizer.decode(result.token_ids[at : at + count]).strip())
            for result in _greedy(route)
            for at in range(len(result.token_ids) + 1 - count)
        ]
        word = next(
            (
                word
                for ids, word in pieces
                if word and barred_in(ids, spellings((word,), tokenizer)) is not None
            ),
            None,
        )
        options = full(route, bad_words=[word])
        slots = [] if word is None else slots_of(route, options)
        for slot in slots:
            barred = spellings((str(word),), tokenizer)
            expect(
                refused(slot, "bad_words")
                or barred_in(answers([slot])[0].token_ids, barred) is None,
                f"bad_words: {word!r} is in an answer that may not have it",
            )


@needs("logit_bias", "token_ids")
def biases_make_tokens_likelier(route: Route) -> None:
    """With 100 a token always comes, and with -100 it does not."""
    free = [result for result in _greedy(route) if result.token_ids]
    token = free[-1].token_ids[0]
    for result in _greedy(route, logit_bias={token: 100}):
        expect(
            {*result.token_ids} <= {token},
            f"logit_bias: other tokens than {token} come, which has 100: {result.token_ids}",
        )
    for result in _greedy(route, logit_bias={token: -100}):
        expect(
            token not in result.token_ids,
            f"logit_bias: {token} comes, which has -100: {result.token_ids}",
        )


@needs("temperature")
def filters_hold_beside_each_other(route: Route) -> None:
    """A narrow filter leaves the greedy token only, whatever wide one is beside it."""
    greedy_outputs = _outputs(_greedy(route))
    for name, other in (
        (name, other)
        for name in NARROW
        for other in WIDE
        if name != other and honours(route, name) and honours(route, other)
    ):
        filters = {name: NARROW[name], other: WIDE[other]}
        expect(
            _outputs(_greedy(route, temperature=HOT, **filters)) == greedy_outputs,
            f"{name}: {name}={NARROW[name]} is ignored beside {other}={WIDE[other]}",
        )


@needs("seed", "repeatable", "temperature")
def any_seed_is_one(route: Route) -> None:
    """0 is a seed as any other, and seeds that differ in a high bit only draw apart.

    Up to the 32nd bit: the generator of torch on a CPU makes nothing of those above.
    """

    def drawn(seed: int) -> list[GenerationResult]:
        return answers(
            run(route, [chat(text, greedy(temperature=HOT, seed=seed)) for text in PROMPTS])
        )

    expect_same(
        drawn(0),
        drawn(0),
        "seed: a row that is asked twice with the seed 0 gives two answers",
    )
    near, far = drawn(1), drawn(1 + 2**31)
    expect(
        not all(map(same, near, far)),
        "seed: the seeds 1 and 2147483649 draw the same for every prompt",
    )


@needs("logprobs", "temperature", "token_ids")
def a_drawn_tokens_logprob_is_its_own(route: Route) -> None:
    """At a high temperature too, where it is seldom the likeliest; the likeliest ones are all
    different, and in order.
    """
    slots = slots_of(
        route,
        greedy(temperature=HOT, logprobs=True, top_logprobs=3),
    )
    if _tells_none(slots):
        return
    for result in answers(slots):
        for entry in result.logprobs or ():
            _own(entry)


def _tells_none(slots: Iterable[Slot[GenerationResult]]) -> bool:
    return any(refused(slot, name) for slot in slots for name in ("logprobs", "top_logprobs"))


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


@needs("logprobs")
def rows_get_the_logprobs_that_they_ask_for(route: Route) -> None:
    """Beside rows that ask for none, or for another number."""
    options: Sequence[dict[str, object]] = (
        {},
        {"logprobs": True},
        {"logprobs": True, "top_logprobs": 2},
        {},
    )
    slots = run(
        route, [chat(text, greedy(**more)) for text, more in zip(PROMPTS, options, strict=True)]
    )
    if _tells_none(slots):
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
    barred_words_do_not_come,
    biases_make_tokens_likelier,
    temperature_is_honoured,
    filters_leave_the_likeliest_token,
    seeds_draw_apart,
    samples_are_drawn_apart,
    penalties_count_what_was_written,
    no_sequence_of_tokens_comes_twice,
    filters_hold_beside_each_other,
    any_seed_is_one,
    a_drawn_tokens_logprob_is_its_own,
    rows_get_the_logprobs_that_they_ask_for,
)
