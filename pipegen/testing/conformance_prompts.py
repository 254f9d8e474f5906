"""Conformance checks of the prompt: templates and their switches, token ids, images, and the limit
of prompt and answer together.

If a server renders, its template is unknown, so of the switches only `continue_final_message` is
checked.
"""

from __future__ import annotations

import math
from typing import Any, Literal

from pipegen.core.errors import BadImage, BadVideo, InvalidRequest, UnsupportedMultimodal
from pipegen.core.slots import is_ok
from pipegen.drivers.batch import run
from pipegen.drivers.route import Route
from pipegen.drivers.scoring import scoring
from pipegen.records.fields import unchecked_replace
from pipegen.records.option_groups import ChatTemplateOptions, StopOptions, VlmPreprocessOptions
from pipegen.records.option_records import GenerationOptions
from pipegen.records.option_table import OPTIONS, names_in
from pipegen.records.options import flat_values, resolve
from pipegen.records.requests import GenerationRequest, TextGenerationRequest, VlmGenerationRequest
from pipegen.records.results import Finish, GenerationResult
from pipegen.testing.ask import (
    LENGTH,
    answer,
    answers,
    chat,
    drawn_image,
    error_of,
    expect,
    expect_same,
    greedy,
    honours,
    needs,
    red_square,
    refused,
    refuses,
    to_all,
)

SHOWN = (
    "{%- for message in messages -%}[{{ message.role }}]{{ message.content if message.content is"
    " string else message.content[0].text }}[end]{%- endfor -%}{%- if add_generation_prompt"
    " -%}[open]{%- endif -%}{%- if enable_thinking -%}[thinks]{%- endif -%}{{- word -}}"
)
"""A template that writes what it is given."""
SMALL = 4096
"""The longest context that is filled to the end."""


def answers_depend_on_the_prompt(route: Route) -> None:
    """A prompt's ids give the same as its messages, and not all prompts get the same answer."""
    results = to_all(route, greedy())
    expect(
        len({result.text for result in results}) > 1, "token_ids: all prompts get the same answer"
    )
    if honours(route, "token_ids"):
        by_ids = answers(
            run(
                route,
                [
                    TextGenerationRequest(prompt_token_ids=result.prompt_token_ids)
                    for result in results
                ],
                greedy(),
            )
        )
        expect_same(
            results,
            by_ids,
            "token_ids: a prompt's ids give something else than its messages",
        )


@needs("template", "token_ids")
def the_template_is_used_with_its_variables(route: Route) -> None:
    """The prompt shows what the template is given."""
    tries: tuple[tuple[str, ChatTemplateOptions, str], ...] = (
        ("template", ChatTemplateOptions(template=SHOWN), "[user]Hi[end][open]"),
        (
            "template_kwargs",
            ChatTemplateOptions(template=SHOWN, template_kwargs={"word": "more"}),
            "[user]Hi[end][open]more",
        ),
        (
            "enable_thinking",
            ChatTemplateOptions(template=SHOWN, enable_thinking=True),
            "[user]Hi[end][open][thinks]",
        ),
        (
            "add_generation_prompt",
            ChatTemplateOptions(template=SHOWN, add_generation_prompt=False),
            "[user]Hi[end]",
        ),
    )
    for name, options, expected in tries:
        if honours(route, name):
            prompt = answer(route, chat("Hi"), greedy(max_new_tokens=1, chat=options)).prompt_text
            expect(prompt == expected, f"{name}: the prompt is {prompt!r}, not {expected!r}")


@needs("continue_final_message")
def a_final_message_is_continued(route: Route) -> None:
    """The assistant's last turn is not closed."""
    messages = [
        {"role": "user", "content": "Count."},
        {"role": "assistant", "content": "One, two"},
    ]
    (slot,) = run(
        route,
        [TextGenerationRequest(messages=messages)],
        greedy(max_new_tokens=1, chat=ChatTemplateOptions(continue_final_message=True)),
    )
    expect(is_ok(slot), f"continue_final_message: the row failed: {slot}")
    open_turn = slot.unwrap()
    if honours(route, "token_ids"):
        expect(
            (open_turn.prompt_text or "").endswith("One, two"),
            f"continue_final_message: the prompt ends with {(open_turn.prompt_text or '')[-20:]!r}",
        )
    else:
        closed = answer(
            route,
            TextGenerationRequest(messages=[*messages, {"role": "user", "content": ""}]),
            greedy(max_new_tokens=1),
        )
        message = (
            "continue_final_message: the prompt of a turn that goes on has as many tokens as that"
            " of one that is closed"
        )
        expect(open_turn.prompt_tokens < closed.prompt_tokens, message)


@needs("control_tokens")
def control_tokens_are_rejected_or_allowed_where_asked(route: Route) -> None:
    """`reject` fails the row, and `allow` makes the id."""
    token, token_id = next(iter(route.engine.tokenizer.special_tokens.items()))
    ways: tuple[Literal["reject", "allow", "text"], ...] = ("reject", "allow", "text")
    rejected, allowed, plain = (
        run(
            route,
            [chat(f"x{token}y")],
            greedy(max_new_tokens=1, chat=ChatTemplateOptions(control_tokens=rule)),
        )[0]
        for rule in ways
    )
    expect(
        isinstance(error_of(rejected), InvalidRequest),
        f"control_tokens: {token!r} is not rejected where that was asked",
    )
    more, fewer = (result.prompt_token_ids.count(token_id) for result in answers([allowed, plain]))
    expect(more > fewer, f"control_tokens: {token!r} is not the token where that is allowed")
    if honours(route, "trust"):
        turns = [("user", "Hi"), ("assistant", f"x{token}y"), ("user", "Go on.")]
        history = TextGenerationRequest(
            messages=[{"role": role, "content": text} for role, text in turns]
        )
        trusts: tuple[tuple[Literal["assistant"], ...], ...] = (("assistant",), ())
        rows = [
            answer(route, history, greedy(max_new_tokens=1, chat=ChatTemplateOptions(trust=trust)))
            for trust in trusts
        ]
        more, fewer = (result.prompt_token_ids.count(token_id) for result in rows)
        expect(
            more > fewer,
            f"trust: {token!r} in an earlier answer is not the token where that answer is trusted",
        )


def _seen(image: bytes, **options: Any) -> GenerationRequest:
    preprocess = VlmPreprocessOptions(**options) if options else None
    return VlmGenerationRequest(
        prompt="Describe the image.",
        images=[image],
        options=GenerationOptions(preprocess=preprocess),
    )


def with_several_images() -> list[GenerationRequest]:
    """The same question to different images."""
    images = (red_square(), *(drawn_image(64, 64, pattern) for pattern in range(3)))
    return [*map(_seen, images)]


@needs("images")
def answers_depend_on_the_images(route: Route) -> None:
    """Different images get different answers, or at least different logprobs."""
    options = greedy(logprobs=True) if honours(route, "logprobs") else greedy()
    slots = run(route, with_several_images(), options)
    if not honours(route, "images"):  # some servers report it only when asked
        return
    results = answers(slots)
    distinct = {
        (result.text, tuple(round(entry.logprob, 3) for entry in result.logprobs or ()))
        for result in results
    }
    expect(len(distinct) > 1, f"images: {len(results)} different images get the same answer")


def videos_are_frames_with_times(route: Route) -> None:
    """A video has the frames and the times that the options choose, and a broken one fails alone.
    If the engine takes no videos, such a request is `UnsupportedMultimodal`.
    """
    frames = [drawn_image(64, 64, index % 3) for index in range(5)]
    video = {"frames": frames, "times": [0, 0.5, 1, 1.5, 4]}
    ask = VlmGenerationRequest(prompt="What happens?", videos=[video])
    if not (honours(route, "videos") and honours(route, "images")):
        (slot,) = run(route, [ask])
        seen = isinstance(error_of(slot), UnsupportedMultimodal)
        expect(seen, f"videos are UnsupportedMultimodal, not {slot}")
        return

    def chosen(**options: Any) -> GenerationResult:
        preprocess = VlmPreprocessOptions(**options)
        request = unchecked_replace(ask, options=greedy(max_new_tokens=1, preprocess=preprocess))
        return answers(run(route, [request]))[0]

    all_frames = chosen()
    expect(
        [*dict.fromkeys(sum(all_frames.video_times, ()))] == [0, 0.5, 1, 1.5, 4],
        f"videos: all frames that are given are taken, not those at {all_frames.video_times}",
    )
    pair = chosen(max_frames=2).video_times
    expect(pair == ((0, 4),), f"max_frames: two frames are the first and the last, not {pair}")
    slow = chosen(fps=0.5).video_times
    expect(len(slow[0]) < len(all_frames.video_times[0]), f"fps: every other second is not {slow}")
    patches = [
        math.prod(result.image_grid_thw[0] or ())
        for result in (all_frames, chosen(max_video_pixels=2 * 64 * 64))
    ]
    expect(patches[1] < patches[0], f"max_video_pixels: {patches[1]} patches of {patches[0]}")
    broken = VlmGenerationRequest(prompt="What happens?", videos=[b"no video"])
    first, other = run(route, [ask, broken], greedy(max_new_tokens=1))
    expect(
        is_ok(first) and isinstance(error_of(other), (BadVideo, UnsupportedMultimodal)),
        f"videos: a broken one fails alone, not {other}",
    )


@needs("images", "token_ids")
def images_keep_to_the_budget(route: Route) -> None:
    """On a grid model `max_pixels` shrinks, `min_pixels` enlarges, and without resizing a size that
    does not fit is refused.
    """

    def run_one(image: bytes, **options: object) -> Any:
        return run(route, [_seen(image, **options)], greedy(max_new_tokens=1))

    def patches(image: bytes, name: str = "", **options: object) -> int | None:
        """None if the model has no grid, or the server refuses the budget."""
        slots = run_one(image, **options)
        grid = None if name and refused(slots[0], name) else answers(slots)[0].image_grid_thw[0]
        return None if grid is None else math.prod(grid)

    small, large = drawn_image(64, 64, 0), drawn_image(256, 256, 0)
    plain = patches(small)
    if plain is None:
        return
    if honours(route, "max_pixels"):
        shrunk = patches(large, "max_pixels", max_pixels=64 * 64)
        expect(
            shrunk is None or shrunk <= plain,
            f"max_pixels: {shrunk} patches of an image of 256x256 within 64x64 pixels, which take"
            f" {plain}",
        )
    if honours(route, "min_pixels"):
        grown = patches(small, "min_pixels", min_pixels=192 * 192, max_pixels=256 * 256)
        expect(
            grown is None or grown >= 4 * plain,
            f"min_pixels: {grown} patches of an image of 64x64 with at least 192x192 pixels;"
            f" {plain} without",
        )
    if honours(route, "do_resize"):
        odd = run_one(drawn_image(67, 61, 0), do_resize=False)[0]
        expect(
            isinstance(error_of(odd), BadImage),
            "do_resize: an image of 67x61 fits no grid, and is BadImage where nothing may be"
            f" resized, not {odd}",
        )


def what_does_not_fit_is_clipped_where_asked(route: Route) -> None:
    """`on_overflow="clip"` lowers `max_new_tokens` to the rest of the context, and the result
    reports it.
    """
    limit = route.engine.capabilities.context_length
    if not honours(route, "token_ids") or limit is None or not 2 * LENGTH < limit <= SMALL:
        return
    short = answer(route, chat("Hi"), greedy(max_new_tokens=1)).prompt_token_ids
    long = TextGenerationRequest(prompt_token_ids=(short * limit)[: limit - LENGTH])
    stops = StopOptions(ignore_eos=True) if honours(route, "ignore_eos") else None
    slot = run(route, [long], greedy(max_new_tokens=LENGTH + 5, on_overflow="clip", stop=stops))[0]
    message = f"a prompt that leaves room for {LENGTH} of {LENGTH + 5} tokens"
    expect(
        is_ok(slot),
        f"on_overflow: {message} is clipped, not {slot} (a short one has {len(short)} tokens)",
    )
    result = slot.unwrap()
    seen = (result.clipped_from, result.options.max_new_tokens)
    expect(
        seen == (LENGTH + 5, LENGTH),
        f"on_overflow: of {message} the result says (clipped from, to) {seen}",
    )
    full = (result.finish, result.completion_tokens) == (Finish.LENGTH, LENGTH)
    expect(
        full or stops is None,
        f"context_length: {message} gets {result.completion_tokens} of them, and ends as"
        f" {result.finish}",
    )


@needs("token_ids")
def the_checkpoints_own_settings_are_taken_where_asked(route: Route) -> None:
    """`use_generation_config=True` takes unset options from the engine's `generation_config`."""
    options = GenerationOptions(use_generation_config=True, max_new_tokens=1)
    slot = run(route, [chat("Hi")], options)[0]
    if is_ok(slot):
        expected = resolve(options, checkpoint=route.engine.generation_config)
        expect(
            _chosen(slot.unwrap()) == _chosen(expected),
            "use_generation_config: the result's options are not those of the checkpoint",
        )


def prompts_have_the_log_probabilities_of_their_scores(route: Route) -> None:
    """`prompt_logprobs` are what `pg.score` gives for the prompt's ids after the first, with an
    answer or without one (`max_new_tokens=0`).
    """
    name = "prompt_logprobs"
    if not honours(route, name):
        if not honours(route, "token_ids"):
            refuses(route, greedy(max_new_tokens=0), "max_new_tokens")
        return
    plain, noted = to_all(route, greedy()), to_all(route, greedy(prompt_logprobs=True))
    read = to_all(route, greedy(max_new_tokens=0, prompt_logprobs=True))
    ids = [result.prompt_token_ids for result in plain]
    scored = run(
        scoring(route),
        [
            {"prompt_token_ids": prompt_ids[:1], "continuation": prompt_ids[1:]}
            for prompt_ids in ids
        ],
    )
    for prompt_ids, slot, *results in zip(ids, scored, noted, read, strict=True):
        expect(is_ok(slot), f"{name}: the prompt cannot be scored: {slot}")
        for result in results:
            first, *others = result.prompt_logprobs or (None,)
            expect(
                first is None
                and [token.token_id for token in others if token] == [*prompt_ids[1:]],
                f"{name}: one for each token of the prompt but the first, in order",
            )
            pairs = [
                (token.logprob, value)
                for token, value in zip(others, slot.unwrap().token_logprobs, strict=True)
                if token
            ]
            expect(
                all(value <= 0 and abs(value - score) < 1e-3 for value, score in pairs),
                f"{name}: they are not the scores of the prompt's tokens",
            )
            expect(
                all(token.top and token.top[0][1] >= token.logprob for token in others if token),
                f"{name}: the likeliest token of each place is missing",
            )
    expect_same(plain, noted, f"{name}: the answers change where they are asked for")
    for result in [*read, *to_all(route, greedy(max_new_tokens=0))]:
        generated = (
            result.text,
            result.raw_text,
            result.token_ids,
            result.finish,
            result.completion_tokens,
        )
        expect(
            generated == ("", "", (), Finish.LENGTH, 0),
            "max_new_tokens: with 0 nothing is generated, and the row ends with LENGTH, not"
            f" {generated}",
        )


def _chosen(of: GenerationResult | GenerationOptions) -> tuple[object, ...]:
    values = flat_values(of.options if isinstance(of, GenerationResult) else of)
    kept = names_in("length", "stop")  # which the request sets, or its room
    return tuple(
        values[name] for name, entry in OPTIONS.items() if entry.row.checkpoint and name not in kept
    )


CHECKS = (
    answers_depend_on_the_prompt,
    the_template_is_used_with_its_variables,
    a_final_message_is_continued,
    control_tokens_are_rejected_or_allowed_where_asked,
    answers_depend_on_the_images,
    images_keep_to_the_budget,
    videos_are_frames_with_times,
    what_does_not_fit_is_clipped_where_asked,
    the_checkpoints_own_settings_are_taken_where_asked,
    prompts_have_the_log_probabilities_of_their_scores,
)
