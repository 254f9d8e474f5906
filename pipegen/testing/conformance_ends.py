"""Conformance checks of how rows end: stops, stop tokens, minimum lengths, limits, and plugins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipegen.core.errors import PromptTooLong, UnsupportedOption, UnsupportedPlugin
from pipegen.core.slots import is_ok
from pipegen.drivers.batch import run
from pipegen.drivers.route import Route, attach, count_tokens
from pipegen.ending.stop_scan import cut
from pipegen.engines.plugin import Plugin
from pipegen.records.option_groups import DecodeOptions, StopOptions
from pipegen.records.requests import GenerationRequest, TextGenerationRequest
from pipegen.records.results import Finish, GenerationResult
from pipegen.testing.ask import (
    LENGTH,
    PROMPTS,
    answer,
    answers,
    chat,
    engine_ids,
    error_of,
    expect,
    greedy,
    honours,
    longest,
    needs,
    refused,
    refuses,
    stopping,
    to_all,
)


def a_stop_string_cuts_and_halts(route: Route) -> None:
    """Wherever the stop is, the text is cut before it, and the row ends at the token that completes
    it.
    """
    request, free = longest(route)
    for start in range(0, max(1, len(free.text) - 3), 5):
        for length in (1, 3):
            stop = free.text[start : start + length]
            stops = stopping(free, stop=(stop, "\u0007 never"))
            result = answer(route, request, greedy(stop=stops))
            expected = cut(free.text, (stop,))
            expect(
                result.text == expected.text,
                f"stop: with {stop!r} the text is {result.text!r}, not {expected.text!r}",
            )
            expect(
                (result.finish, result.stop) == (Finish.STOP_STRING, stop),
                f"stop: {stop!r} must be named, not {result.finish}, {result.stop!r}",
            )
            if honours(route, "token_ids"):
                expect(
                    result.token_ids == free.token_ids[: result.completion_tokens],
                    "a stop changes no token before it",
                )
                hidden = set(route.engine.tokenizer.special_tokens.values())
                shorter = route.engine.tokenizer.decode(
                    [token_id for token_id in result.token_ids[:-1] if token_id not in hidden]
                )
                expect(
                    cut(shorter, (stop,)).stop is None,
                    "the row must end at the very token that completes the stop",
                )


@needs("stop_token_ids")
def a_stop_token_ends_the_row(route: Route) -> None:
    """Its text is in raw_text only, and its id is reported."""
    request, free = longest(route)
    if not free.token_ids:  # a server without ids: the stop token is unknown
        return
    token = free.token_ids[len(free.token_ids) // 2]
    first = free.token_ids.index(token)
    result = answer(route, request, greedy(stop=stopping(free, stop_token_ids=(token,))))
    expect(
        (result.finish, result.stop) == (Finish.STOP_TOKEN, token),
        f"stop_token_ids: the stop token must be reported, not {result.finish}, {result.stop!r}",
    )
    expect(result.token_ids == free.token_ids[: first + 1], "the row ends with the stop token")


def a_prompt_that_does_not_fit_is_refused_or_clipped(route: Route) -> None:
    """Beyond the caller's limit, and beyond the model's."""
    limit = route.engine.capabilities.context_length

    def beyond(request: GenerationRequest, tokens: int, what: str) -> None:
        error = error_of(run(route, [request], greedy(max_new_tokens=tokens))[0])
        expect(
            isinstance(error, PromptTooLong) and error.limit == limit,
            f"{what} is PromptTooLong, not {error}",
        )

    counted = count_tokens(route, chat("Hi"))
    if not honours(route, "token_ids"):
        expect(
            isinstance(counted.failure(), UnsupportedOption),
            f"an engine that renders by itself counts no tokens, and says so, not {counted}",
        )
        refuses(route, greedy(max_prompt_tokens=1000), "max_prompt_tokens")
        if limit is not None:
            beyond(chat("a " * limit), 1, f"a prompt beyond {limit} tokens")
        return
    tokens = counted.unwrap()
    within, broken = (
        run(route, [chat("Hi")], greedy(max_new_tokens=1, max_prompt_tokens=most))[0]
        for most in (tokens, tokens - 1)
    )
    expect(is_ok(within), f"max_prompt_tokens: a prompt of {tokens} tokens keeps to {tokens}")
    seen = error_of(broken)
    expect(
        isinstance(seen, PromptTooLong)
        and (seen.prompt_tokens, seen.limit) == (tokens, tokens - 1),
        f"max_prompt_tokens: one token less is PromptTooLong, not {seen}",
    )
    if limit is None:
        return
    beyond(chat("Hi"), limit, f"prompt plus answer beyond {limit} tokens")
    long = TextGenerationRequest(prompt_token_ids=[1] * limit)
    expect(
        isinstance(error_of(run(route, [long], greedy(max_new_tokens=1))[0]), PromptTooLong),
        "a prompt as long as the limit is PromptTooLong",
    )


@needs("min_new_tokens")
def min_new_tokens_holds(route: Route) -> None:
    """Nothing ends a row before it, and a stop within those tokens does not count."""
    request, free = longest(route)
    for result in to_all(route, greedy(min_new_tokens=LENGTH)):
        expect(
            result.completion_tokens == LENGTH,
            f"min_new_tokens={LENGTH} and only {result.completion_tokens} tokens",
        )
    if not free.token_ids:
        return
    least, token = len(free.token_ids) // 2, free.token_ids[0]
    options = greedy(min_new_tokens=least, stop=stopping(free, stop=(free.text[:2],)))
    slots = run(route, [request], options)
    if honours(route, "token_ids") or not refused(slots[0], "min_new_tokens"):
        result = answers(slots)[0]
        expect(
            result.completion_tokens > least,
            f"min_new_tokens={least} and only {result.completion_tokens} tokens",
        )
    options = greedy(min_new_tokens=2, stop=stopping(free, stop_token_ids=(token,)))
    slots = run(route, [request], options)
    if not refused(slots[0], "min_new_tokens"):
        expect(
            token not in answers(slots)[0].token_ids[:2],
            "min_new_tokens: a stop token is generated within them",
        )


@needs("ignore_eos")
def end_tokens_are_ignored_where_asked(route: Route) -> None:
    """`ignore_eos` continues to `max_new_tokens`; the end token in the middle is in the text only
    without `skip_special_tokens`.
    """
    free = to_all(route, greedy())
    requests = [
        chat(text)
        for text, result in zip(PROMPTS, free, strict=True)
        if result.finish is Finish.EOS and result.completion_tokens < LENGTH
    ]

    def without_special_tokens(skips: bool) -> list[GenerationResult]:
        options = greedy(
            stop=StopOptions(ignore_eos=True), decode=DecodeOptions(skip_special_tokens=skips)
        )
        return answers(run(route, requests, options))

    hidden = without_special_tokens(True)
    for result in hidden:
        seen = (result.finish, result.completion_tokens)
        expect(
            seen == (Finish.LENGTH, LENGTH),
            f"ignore_eos: the row ends as {result.finish} after {result.completion_tokens} tokens,"
            f" not {LENGTH}",
        )
    # a server's parsers may drop the text at an end token
    if requests and honours(route, "skip_special_tokens"):
        shown = without_special_tokens(False)
        changed = any(
            (first.reasoning, first.text) != (second.reasoning, second.text)
            for first, second in zip(hidden, shown, strict=True)
        )
        expect(
            changed,
            "skip_special_tokens: texts with an end token in their middle are the same with and"
            " without special tokens",
        )


def whitespace_is_stripped_where_asked(route: Route) -> None:
    """`strip_whitespace` strips both ends of the text, after the cut."""
    ignores: bool | None = True if honours(route, "ignore_eos") else None
    for text, free in zip(
        PROMPTS,
        to_all(
            route,
            greedy(stop=StopOptions(ignore_eos=ignores)),
        ),
        strict=True,
    ):
        for index in range(1, len(free.text) - 1):
            stop = free.text[index + 1 : index + 4]
            expected = cut(free.text, (stop,)).text
            if expected != expected.strip() and expected.strip():
                options = greedy(
                    stop=StopOptions(stop=(stop,), ignore_eos=ignores),
                    decode=DecodeOptions(strip_whitespace=True),
                )
                seen = answer(route, chat(text), options).text
                expect(
                    seen == expected.strip(),
                    f"strip_whitespace: the text is {seen!r}, not {expected.strip()!r}",
                )
                return


@needs("token_ids")
def the_engine_itself_halts(route: Route) -> None:
    """pipegen cuts the text at stops; the engine must also end the row there, at any of several
    stops, whatever their order and kind.
    """
    request, free = longest(route)
    length = 4 * LENGTH

    def generated(most: int, **stops: object) -> tuple[int, ...]:
        options = greedy(max_new_tokens=most, stop=stopping(free, **stops))
        return engine_ids(route, request, options)

    all_ids = generated(length)
    for most, ids in ((length, all_ids), (3, generated(3))):
        expect(
            len(ids) <= most,
            f"max_new_tokens: the engine generates {len(ids)} tokens, and {most} were asked for",
        )
    if len(all_ids) <= LENGTH:
        return
    token, text, never = free.token_ids[len(free.token_ids) // 2], free.text[1:4], "\u0007 never"
    absent = next(
        token_id for token_id in range(route.engine.tokenizer.vocab_size) if token_id not in all_ids
    )
    ways: tuple[tuple[str, Mapping[str, object]], ...] = (
        ("stop", {"stop": (text,)}),
        ("stop", {"stop": (text, never)}),
        ("stop", {"stop": (never, text)}),
        ("stop", {"stop": (text,), "stop_token_ids": (absent,)}),
        ("stop_token_ids", {"stop_token_ids": (token,)}),
        ("stop_token_ids", {"stop_token_ids": (token, absent)}),
        ("stop_token_ids", {"stop_token_ids": (absent, token)}),
        ("stop_token_ids", {"stop_token_ids": (token,), "stop": (never,)}),
    )
    for name, stops in ways:
        if all(honours(route, option) for option in stops):
            count = len(generated(length, **stops))
            expect(
                count < len(all_ids),
                f"{name}: the engine does not halt at {stops}, and generates {count} tokens",
            )


def plugins_act_on_the_row(route: Route) -> None:
    """The engine does what a plugin needs, or attaching the plugin is refused."""
    request, free = longest(route)
    options = greedy(stop=stopping(free))
    forced = free.token_ids[0] if free.token_ids else 0

    def only_one(ids: object, scores: Any) -> object:
        scores = scores.clone()
        scores[:] = float("-inf")
        scores[:, forced] = 0.0
        return scores

    plugins = (
        Plugin(
            name="watch",
            start=lambda: 0,
            feed=lambda seen, text: (
                seen + len(text),
                len(text) if seen + len(text) >= 2 else None,
            ),
        ),
        Plugin(
            name="stopping_criteria",
            stopping_criteria=lambda context: lambda ids, scores: ids[:, -1] == ids[:, -1],
        ),
        Plugin(name="logits_processor", logits_processor=lambda context: only_one),
    )
    for plugin in plugins:
        try:
            attached = attach(route, plugin)
        except UnsupportedPlugin as refusal:
            expect(
                not honours(route, plugin.name),
                f"{plugin.name}: it is honoured, and attaching such a plugin is refused: {refusal}",
            )
            continue
        expect(
            honours(route, plugin.name),
            f"{plugin.name}: it is not honoured, so attaching such a plugin is UnsupportedPlugin",
        )
        result = answer(attached, request, options)
        if plugin.name == "logits_processor":
            expect(
                set(result.token_ids) == {forced},
                f"logits_processor: the row has other tokens than {forced}, to which the plugin"
                " holds it",
            )
            continue
        ending = (result.finish, result.stop, result.completion_tokens < free.completion_tokens)
        expect(
            ending == (Finish.PLUGIN, plugin.name, True),
            f"{plugin.name}: the plugin halts the row, which ends as {result.finish}"
            f" ({result.stop!r})",
        )
        if plugin.name == "watch" and honours(route, "token_ids"):
            count = len(engine_ids(attached, request, options))
            expect(
                count < free.completion_tokens,
                f"watch: the engine does not halt where the plugin does, and generates {count}"
                " tokens",
            )


CHECKS = (
    a_stop_string_cuts_and_halts,
    a_stop_token_ends_the_row,
    a_prompt_that_does_not_fit_is_refused_or_clipped,
    min_new_tokens_holds,
    end_tokens_are_ignored_where_asked,
    whitespace_is_stripped_where_asked,
    the_engine_itself_halts,
    plugins_act_on_the_row,
)
