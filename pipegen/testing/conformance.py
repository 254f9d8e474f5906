"""One suite for every backend: what a route owes its callers, whatever engine and model it has.

Each check takes a route and derives its stops and limits from what the model generates. So it runs
on any model that generates at least a dozen tokens greedily. Use it from pytest:

    @pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.__name__)
    def test_conformance(check, route):
        check(route)

Each capability has a check that fails for an engine that claims it wrongly; the message names the
capability. If the engine does not claim it, the check expects the option to be refused. For servers
that render and decode (no `token_ids` among the capabilities), ids and prompts are not checked.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from pipegen.core.errors import (
    BadImage,
    InvalidRequest,
    MalformedResponse,
    TemplateFailed,
    UnsupportedMultimodal,
)
from pipegen.core.slots import is_ok
from pipegen.drivers.batch import arun, run
from pipegen.drivers.mapping import imap
from pipegen.drivers.route import Route
from pipegen.drivers.streaming import Delta, Done, stream
from pipegen.records.option_groups import ChatTemplateOptions, StopOptions, StructuredOptions
from pipegen.records.option_records import GenerationOptions
from pipegen.records.option_table import OPTIONS
from pipegen.records.options import options_from
from pipegen.records.requests import TextGenerationRequest, VlmGenerationRequest
from pipegen.records.results import Finish, GenerationResult
from pipegen.testing import (
    conformance_ends,
    conformance_prompts,
    conformance_sampling,
    conformance_turns,
)
from pipegen.testing.ask import (
    LENGTH,
    PROMPTS,
    answer,
    answers,
    chat,
    error_of,
    expect,
    expect_same,
    greedy,
    honours,
    longest,
    needs,
    red_square,
    refused,
    refuses,
    same,
    slots_of,
    to_all,
)

__all__ = ["CHECKS", "Check"]

Check = Callable[[Route], None]
"""Raises `AssertionError` if the route breaks a rule."""
_WITH_OTHERS = ("top_logprobs", "stop", "continue_final_message")
"""Options that other checks try, with what they need beside them."""
NOT_NEUTRAL: Mapping[str, GenerationOptions] = {
    name: options_from({name: entry.row.trial})
    for name, entry in OPTIONS.items()
    if not entry.row.anywhere and name not in _WITH_OTHERS
}
"""A value of each option that an engine itself must honour or refuse."""


def an_empty_batch_gives_an_empty_batch(route: Route) -> None:
    """With no call."""
    expect(run(route, []) == (), "an empty batch must give an empty batch")


def results_report_what_was_done(route: Route) -> None:
    """Counts, ids, route and effective options agree with each other."""
    for result in to_all(route, greedy()):
        if honours(route, "token_ids"):
            expect(
                result.completion_tokens == len(result.token_ids),
                "completion_tokens counts the generated ids",
            )
            expect(
                result.prompt_tokens == len(result.prompt_token_ids),
                "prompt_tokens counts the prompt's ids",
            )
            expect(
                result.raw_text == route.engine.tokenizer.decode(result.token_ids),
                "raw_text is the decode of the generated ids",
            )
        expect(result.prompt_tokens > 0, "the prompt's tokens are counted")
        expect(result.completion_tokens <= LENGTH, "max_new_tokens: more are generated")
        expect(result.route == route.name, "the result names its route")
        full = (
            result.completion_tokens == LENGTH
            and result.stop is None
            and result.finish is not Finish.EOS
        )
        expect(
            (result.finish is Finish.LENGTH) == full, "finish is LENGTH exactly at max_new_tokens"
        )


def effective_options_sent_again_give_the_same(route: Route) -> None:
    """So the options of a result repeat it."""
    for text in PROMPTS:
        first = answer(route, chat(text), greedy())
        again = answer(route, chat(text, first.options))
        expect(
            same(first, again) and first.options == again.options,
            "effective options sent again must give the same result",
        )


def rows_do_not_depend_on_their_batch(route: Route) -> None:
    """Greedy rows give the same alone and in a batch, whatever their lengths and limits."""
    options = [greedy(max_new_tokens=limit) for limit in (3, LENGTH, 7, 12)]
    requests = [chat(text, row_options) for text, row_options in zip(PROMPTS, options, strict=True)]
    expect_same(
        answers(run(route, requests)),
        [answer(route, request) for request in requests],
        "a greedy row must give the same alone and in a batch",
    )


def what_is_fed_gives_what_one_batch_gives(route: Route) -> None:
    """Whether rows are added while the engine works on others, or all at once, and in whatever
    order they end.
    """
    requests = [
        chat(text, greedy(max_new_tokens=limit)) for limit in (3, LENGTH, 7, 1) for text in PROMPTS
    ]
    in_one_batch = answers(run(route, requests))
    for in_flight in (1, 3, None):
        expect_same(
            answers(list(imap(route, requests, in_flight=in_flight))),
            in_one_batch,
            f"imap with in_flight={in_flight}: a row gives another answer than in one batch",
        )


def order_is_kept_and_bad_rows_fail_alone(route: Route) -> None:
    """Each row gets its own result; invalid input is refused in its slot, before the engine."""
    takes_ids = honours(route, "token_ids")
    bad = TextGenerationRequest(
        prompt_token_ids=[route.engine.tokenizer.vocab_size if takes_ids else 1]
    )
    slots = run(route, [chat(PROMPTS[0]), bad, chat(PROMPTS[1])], greedy(max_new_tokens=4))
    expect([is_ok(slot) for slot in slots] == [True, False, True], "a bad row fails alone")
    expect(
        isinstance(slots[1].failure(), InvalidRequest),
        "an id outside the vocabulary, or where ids are not taken, is InvalidRequest",
    )
    for row, text in ((0, PROMPTS[0]), (2, PROMPTS[1])):
        expect(
            same(slots[row].unwrap(), answer(route, chat(text), greedy(max_new_tokens=4))),
            "its neighbours get their own answers",
        )


@needs("seed")
def seeds_make_rows_repeatable(route: Route) -> None:
    """A seeded row does not depend on its batch; samples get derived seeds."""
    if not honours(route, "repeatable"):
        return
    hot = [
        chat(PROMPTS[row % 2], greedy(temperature=1.5, seed=seed))
        for row, seed in enumerate((1, 2, 3, 1, 1))
    ]
    again = [answer(route, hot[0]) for _ in range(2)]
    expect(same(*again), "seed: a row that is asked twice with one seed gives two answers")
    results = answers(run(route, hot))
    for row in (0, 3, 4):
        expect(
            same(results[row], answer(route, hot[row])),
            "repeatable: a seeded row must not depend on its batch",
        )
    expect(
        same(*answers(run(route, [hot[0], hot[0]]))),
        "seed: two equal rows with one seed must be equal",
    )
    many = answer(route, hot[0], GenerationOptions(samples=3))
    seeds = [sample.options.seed for sample in many.samples]
    expect(
        len(many.samples) == 3 and len(set(seeds)) == 3 and seeds[0] == 1,
        f"samples: they have seeds of their own, not {seeds}",
    )
    expect(
        same(many.samples[0], results[0]),
        "samples: the first is the row with the request's own seed",
    )


def _complete(result: GenerationResult) -> None:
    token_ids = [entry.token_id for entry in result.logprobs or ()]
    expect(
        len(token_ids) == result.completion_tokens,
        f"logprobs: {len(token_ids)} of them for {result.completion_tokens} generated tokens",
    )
    expect(
        not result.token_ids or token_ids == list(result.token_ids),
        "logprobs: one for each generated token, in order",
    )


@needs("logprobs")
def logprobs_are_the_models_own(route: Route) -> None:
    """One for each generated token, the ending one included, before the temperature."""
    plain = answer(route, chat(PROMPTS[0]), greedy(logprobs=True, top_logprobs=2))
    _complete(plain)
    for entry in plain.logprobs or ():
        expect(
            len(entry.top) == 2,
            f"top_logprobs: {len(entry.top)} of the likeliest tokens, and 2 were asked for",
        )
        expect(
            entry.logprob <= 0 and abs(entry.top[0][1] - entry.logprob) < 1e-3,
            "logprobs: a greedy token's own is the best of the top ones",
        )
    closest = min(entry.top[0][1] - entry.top[1][1] for entry in plain.logprobs or ())
    expect(
        plain.margin is not None and abs(plain.margin - closest) < 1e-3,
        "the margin is that between the two likeliest tokens where they are closest",
    )
    if honours(route, "seed"):
        slots = run(route, [chat(PROMPTS[0])], greedy(logprobs=True, temperature=0.01, seed=1))
        if refused(slots[0], "logprobs"):
            return
        hot = answers(slots)[0]
        _complete(hot)
        if hot.token_ids == plain.token_ids:
            pairs = zip(hot.logprobs or (), plain.logprobs or (), strict=True)
            expect(
                all(abs(a.logprob - b.logprob) < 1e-3 for a, b in pairs),
                "logprobs: they do not depend on the temperature",
            )


def streamed_text_is_the_batch_text(route: Route) -> None:
    """Joined deltas equal the text of the result, which equals that of `run`; no broken
    characters.
    """
    request, free = longest(route)
    stop = free.text[len(free.text) // 2 :][:3] or free.text[-1:]
    requests = [chat(text) for text in PROMPTS[:2]] + [
        dataclasses.replace(request, options=GenerationOptions(stop=StopOptions(stop=(stop,))))
    ]
    requests.append(dataclasses.replace(request, options=free.options))
    joined, deltas, done = [""] * len(requests), [0] * len(requests), {}
    for event in stream(route, requests, greedy()):
        if isinstance(event, Delta):
            expect(event.index not in done, "no delta after Done")
            joined[event.index] += event.text
            deltas[event.index] += 1
        elif isinstance(event, Done):
            done[event.index] = event.slot
    results = answers(run(route, requests, greedy()))
    for index, result in enumerate(results):
        expect(joined[index] == result.text, f"streamed {joined[index]!r}, not {result.text!r}")
        expect(same(done[index].unwrap(), result), "Done carries the slot that run gives")
    long = [
        index
        for index, result in enumerate(results)
        if result.completion_tokens >= 8 and len(result.text) >= 8
    ]
    if honours(route, "stream") and long:
        expect(
            any(deltas[index] > 1 for index in long),
            "stream: every text comes in one piece, when it is finished",
        )


def sync_and_async_agree(route: Route) -> None:
    """`arun` gives what `run` gives."""
    requests = [chat(text) for text in PROMPTS[:2]]
    expect_same(
        answers(asyncio.run(arun(route, requests, greedy()))),
        answers(run(route, requests, greedy())),
        "arun must give what run gives",
    )


@needs("control_tokens")
def control_tokens_of_users_stay_text(route: Route) -> None:
    """A control token in a user's text gives no control id."""
    tokenizer = route.engine.tokenizer
    harmless = answer(route, chat("x y"), greedy(max_new_tokens=1))
    for token, token_id in list(tokenizer.special_tokens.items())[:6]:
        hostile = answer(route, chat(f"x{token}y"), greedy(max_new_tokens=1))
        count = hostile.prompt_token_ids.count(token_id)
        expect(
            count == harmless.prompt_token_ids.count(token_id),
            f"control_tokens: {token!r} written by a user became a control token",
        )


def images_are_taken_or_refused(route: Route) -> None:
    """A broken image fails alone. If the engine takes no images, each image request fails, and
    other requests succeed.
    """
    image = red_square()
    requests = [
        VlmGenerationRequest(prompt="What do you see?", images=[image]),
        chat("Hi"),
        VlmGenerationRequest(prompt="What do you see?", images=[image, b"broken"]),
        VlmGenerationRequest(prompt="Compare.", images=[image, image]),
    ]
    slots = run(route, requests, greedy(max_new_tokens=4))
    expect(is_ok(slots[1]), "a text request beside images succeeds")
    if not honours(route, "images"):
        expect(
            all(isinstance(error_of(slots[row]), UnsupportedMultimodal) for row in (0, 3)),
            "images are UnsupportedMultimodal",
        )
        expect(
            isinstance(error_of(slots[2]), (UnsupportedMultimodal, BadImage)),
            "a broken image fails in any case",
        )
        return
    error = error_of(slots[2])
    expect(
        isinstance(error, BadImage) and error.index == 1,
        f"a broken image is BadImage with its index, not {slots[2]}",
    )
    first, second = answers([slots[0], slots[3]])
    if honours(route, "token_ids"):
        expect(
            len(first.image_grid_thw) == 1 and len(second.image_grid_thw) == 2,
            "images: each one's grid is reported",
        )
    expect(
        same(first, answer(route, requests[0], greedy(max_new_tokens=4))),
        "an image row does not depend on its batch",
    )


def _json_of(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None


def answers_have_the_form_that_was_asked(route: Route) -> None:
    """One of the choices, a match of the regular expression, JSON of the schema."""
    choices = ("yes", "no way")
    forms: tuple[tuple[str, object, Callable[[str], bool]], ...] = (
        ("choice", choices, lambda text: text in choices),
        (
            "regex",
            r"[ab]{3}-\d{2}\S\w",
            lambda text: re.fullmatch(r"[ab]{3}-\d{2}\S\w", text, re.ASCII) is not None,
        ),
        ("json_schema", {"enum": choices}, lambda text: _json_of(text) in choices),
    )
    free = to_all(route, greedy())
    for name, form, holds in forms:
        structured: dict[str, Any] = {name: form}
        options = greedy(structured=StructuredOptions(**structured))
        if not honours(route, name):
            continue
        formed, beside = [chat(text, options) for text in PROMPTS], [chat(text) for text in PROMPTS]
        slots = run(route, [*formed, *beside], greedy())
        for slot in slots[: len(PROMPTS)]:
            expect(is_ok(slot), f"{name}={form!r} is not honoured: {error_of(slot)}")
        results = answers(slots)
        for result in results[: len(PROMPTS)]:
            expect(
                result.finish is Finish.EOS and holds(result.text),
                f"{result.text!r} ({result.finish}) has not the form {name}={form!r}",
            )
        unchanged = not honours(route, "repeatable") or all(
            map(same, results[len(PROMPTS) :], free)
        )
        expect(unchanged, f"rows that are free are not changed by rows beside them with {name}")


@needs("choice", "enable_thinking")
def thoughts_before_a_form_are_thought_or_refused(route: Route) -> None:
    """An engine that holds a form from the first token refuses `enable_thinking` beside it, instead
    of calling it honoured.
    """
    options = greedy(
        structured=StructuredOptions(choice=("yes", "no way")),
        chat=ChatTemplateOptions(enable_thinking=True),
    )
    for slot in slots_of(route, options):
        if not refused(slot, "enable_thinking"):
            (result,) = answers([slot])
            expect(
                bool(result.reasoning) or result.thinking == "unsupported",
                f"enable_thinking with choice: nothing was thought before {result.text!r}",
            )


@needs("max_thinking_tokens")
def a_thought_is_no_longer_than_asked(route: Route) -> None:
    """Where the template has one: it comes apart from the answer, cut and closed."""
    options = greedy(max_thinking_tokens=2, max_new_tokens=24)
    for slot in slots_of(route, options):
        if refused(slot, "max_thinking_tokens"):
            continue
        (result,) = answers([slot])
        expect(result.reasoning is not None, "max_thinking_tokens: there is no thought")
        last = max(result.forced, default=0)
        sampled = [index for index in range(last) if index not in result.forced]
        expect(len(sampled) <= 2, f"max_thinking_tokens: {len(sampled)} are thought, and 2 asked")


@needs("tool_choice")
def a_tool_is_called_where_asked(route: Route) -> None:
    """By name, with arguments of its schema; or it is refused, for a template that has no tools or
    another form of calls. A server whose grammar allows white space in JSON may write it up to its
    length: then the row fails, and the error says so.
    """
    schema = {"type": "object", "properties": {"yes": {"type": "boolean"}}, "required": ["yes"]}
    function = {"name": "say", "parameters": {**schema, "additionalProperties": False}}
    options = greedy(max_new_tokens=80, structured=StructuredOptions(tool_choice="say"))
    request = dataclasses.replace(
        chat("Hi", options), tools=({"type": "function", "function": function},)
    )
    (slot,) = run(route, [request])
    if is_ok(slot):
        names = [call["function"]["name"] for call in slot.unwrap().tool_calls]
        expect(names == ["say"], f"tool_choice: {slot.unwrap().text!r} is no call of the tool")
        return
    error = slot.failure()
    in_white_space = isinstance(error, MalformedResponse) and "white space" in error.message
    expect(
        in_white_space or isinstance(error, TemplateFailed) or refused(slot, "tool_choice"),
        f"tool_choice: {error_of(slot)}",
    )


@needs("choice", "logprobs")
def logprobs_beside_a_form_are_the_models_own(route: Route) -> None:
    """They are taken over the whole vocabulary: of an answer that had no choice, they are not all
    0. An engine that has others refuses.
    """
    (slot,) = run(
        route, [chat("Hi")], greedy(logprobs=True, structured=StructuredOptions(choice=("no way",)))
    )
    if not is_ok(slot):
        expect(
            getattr(slot.failure(), "option", "") == "logprobs",
            f"only logprobs can be refused beside a choice, not {slot.failure()}",
        )
        return
    logprobs = slot.unwrap().logprobs or ()
    expect(
        sum(entry.logprob for entry in logprobs) < -1e-3,
        "logprobs beside a form are the model's own, taken before its mask",
    )


def what_is_not_honoured_is_refused(route: Route) -> None:
    """In its slot, by name."""
    for name, options in NOT_NEUTRAL.items():
        if not honours(route, name):
            refuses(route, options, name)


CHECKS: tuple[Check, ...] = (
    an_empty_batch_gives_an_empty_batch,
    results_report_what_was_done,
    effective_options_sent_again_give_the_same,
    rows_do_not_depend_on_their_batch,
    what_is_fed_gives_what_one_batch_gives,
    order_is_kept_and_bad_rows_fail_alone,
    seeds_make_rows_repeatable,
    logprobs_are_the_models_own,
    streamed_text_is_the_batch_text,
    sync_and_async_agree,
    control_tokens_of_users_stay_text,
    images_are_taken_or_refused,
    answers_have_the_form_that_was_asked,
    thoughts_before_a_form_are_thought_or_refused,
    a_thought_is_no_longer_than_asked,
    a_tool_is_called_where_asked,
    logprobs_beside_a_form_are_the_models_own,
    what_is_not_honoured_is_refused,
    *conformance_ends.CHECKS,
    *conformance_sampling.CHECKS,
    *conformance_prompts.CHECKS,
    *conformance_turns.CHECKS,
)
"""All checks, in the order to run them."""
