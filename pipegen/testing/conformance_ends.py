"""Of the conformance suite: how rows end. Where stops, stop tokens, least lengths and limits end them, or keep them from beginning."""

from __future__ import annotations

from pipegen.drive import run
from pipegen.errors import PromptTooLong, UnsupportedOption
from pipegen.options import StopOptions
from pipegen.records import Finish
from pipegen.requests import TextGenerationRequest
from pipegen.route import Route, count_tokens
from pipegen.slots import is_ok
from pipegen.stages.stop import cut
from pipegen.testing.ask import LENGTH, PROMPTS, answers, chat, expect, greedy, honours, longest, refused, refuses, runs_on

__all__ = ["a_prompt_that_does_not_fit_is_refused_or_clipped", "a_stop_string_cuts_and_halts", "a_stop_token_ends_the_row", "min_new_tokens_holds"]


def a_stop_string_cuts_and_halts(route: Route) -> None:
    """A5, A6, A12, A13: wherever the stop lies, the text is the cut of the free text, and the row ends at the token that completes it."""
    request, free = longest(route)
    for start in range(0, max(1, len(free.text) - 3), 5):
        for length in (1, 3):
            stop = free.text[start : start + length]
            stops = StopOptions(stop=(stop, "\u0007 never"), ignore_eos=runs_on(free))
            result = answers(run(route, [request], greedy(stop=stops)))[0]
            wanted = cut(free.text, (stop,))
            expect(result.text == wanted.text, f"stop {stop!r}: text {result.text!r}, not {wanted.text!r}")
            expect((result.finish, result.stop) == (Finish.STOP_STRING, stop), f"stop {stop!r} must be named, not {result.finish}, {result.stop!r}")
            if honours(route, "token_ids"):
                expect(result.token_ids == free.token_ids[: result.completion_tokens], "a stop changes no token before it")
                hidden = set(route.engine.tokenizer.special_tokens.values())
                shorter = route.engine.tokenizer.decode([token_id for token_id in result.token_ids[:-1] if token_id not in hidden])
                expect(cut(shorter, (stop,)).stop is None, "the row must end at the very token that completes the stop")


def a_stop_token_ends_the_row(route: Route) -> None:
    """A7: its text is in raw_text only, and its id is reported."""
    request, free = longest(route)
    if not honours(route, "stop_token_ids"):
        refuses(route, greedy(stop=StopOptions(stop_token_ids=(5,))), "stop_token_ids")
        return
    if not free.token_ids:  # a server that tells no ids: which to stop at is not known
        return
    token = free.token_ids[len(free.token_ids) // 2]
    first = free.token_ids.index(token)
    result = answers(run(route, [request], greedy(stop=StopOptions(stop_token_ids=(token,), ignore_eos=runs_on(free)))))[0]
    expect((result.finish, result.stop) == (Finish.STOP_TOKEN, token), f"the stop token must be reported, not {result.finish}, {result.stop!r}")
    expect(result.token_ids == free.token_ids[: first + 1], "the row ends with the stop token")


def a_prompt_that_does_not_fit_is_refused_or_clipped(route: Route) -> None:
    """T7: beyond the caller's own limit, and beyond the model's."""
    counted = count_tokens(route, chat("Hi"))
    if not honours(route, "token_ids"):
        expect(isinstance(counted.failure(), UnsupportedOption), f"an engine that renders by itself counts no tokens, and says so, not {counted}")
        refuses(route, greedy(max_prompt_tokens=1000), "max_prompt_tokens")
        if (limit := route.engine.capabilities.context_length) is not None:
            error = run(route, [chat("a " * limit)], greedy(max_new_tokens=1))[0].failure()
            expect(isinstance(error, PromptTooLong) and error.limit == limit, f"a prompt beyond {limit} tokens is PromptTooLong, not {error}")
        return
    tokens = counted.unwrap()
    kept, broken = (run(route, [chat("Hi")], greedy(max_new_tokens=1, max_prompt_tokens=most))[0] for most in (tokens, tokens - 1))
    expect(is_ok(kept), f"a prompt of {tokens} tokens keeps to max_prompt_tokens={tokens}")
    seen = broken.failure()
    expect(isinstance(seen, PromptTooLong) and (seen.prompt_tokens, seen.limit) == (tokens, tokens - 1), f"one token less is PromptTooLong, not {seen}")
    limit = route.engine.capabilities.context_length
    if limit is None:
        return
    error = run(route, [chat("Hi")], greedy(max_new_tokens=limit))[0].failure()
    expect(isinstance(error, PromptTooLong) and error.limit == limit, f"prompt plus answer beyond {limit} tokens is PromptTooLong, not {error}")
    long = TextGenerationRequest(prompt_token_ids=[1] * limit)
    expect(isinstance(run(route, [long], greedy(max_new_tokens=1))[0].failure(), PromptTooLong), "a prompt as long as the limit is PromptTooLong")


def min_new_tokens_holds(route: Route) -> None:
    """A19: nothing ends a row before it, and a stop within those tokens does not count."""
    request, free = longest(route)
    if not honours(route, "min_new_tokens"):
        refuses(route, greedy(min_new_tokens=2), "min_new_tokens")
        return
    for result in answers(run(route, [chat(text) for text in PROMPTS], greedy(min_new_tokens=LENGTH))):
        expect(result.completion_tokens == LENGTH, f"min_new_tokens={LENGTH} and only {result.completion_tokens} tokens")
    if not free.token_ids:
        return
    least = len(free.token_ids) // 2
    ignore = runs_on(free)
    token = free.token_ids[0]
    slots = run(route, [request], greedy(min_new_tokens=least, stop=StopOptions(stop=(free.text[:2],), ignore_eos=ignore)))
    if honours(route, "token_ids") or not refused(slots[0], "min_new_tokens"):
        result = answers(slots)[0]
        expect(result.completion_tokens > least, f"min_new_tokens={least} and only {result.completion_tokens} tokens")
    slots = run(route, [request], greedy(min_new_tokens=2, stop=StopOptions(stop_token_ids=(token,), ignore_eos=ignore)))
    if not refused(slots[0], "min_new_tokens"):
        expect(token not in answers(slots)[0].token_ids[:2], "a stop token is not generated within min_new_tokens")
