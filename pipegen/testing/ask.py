"""Requests for the conformance suite, and checks of their answers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from pipegen.core.errors import GenerationError, UnsupportedOption
from pipegen.core.interpreter import Row, advance
from pipegen.core.slots import Slot, is_ok
from pipegen.drivers.arguments import check_settings
from pipegen.drivers.batch import run
from pipegen.drivers.route import Route
from pipegen.media.png import png_of
from pipegen.records.option_groups import StopOptions
from pipegen.records.option_records import GenerationOptions
from pipegen.records.requests import GenerationRequest, TextGenerationRequest
from pipegen.records.results import GenerationResult, Raw

PROMPTS = ("List the months of the year.", "Count from 1 to 12.", "Tell me a story.", "Hi")
LENGTH = 24


def expect(holds: bool, message: str) -> None:
    """Raise `AssertionError` with these words unless it holds."""
    if not holds:
        raise AssertionError(message)


def chat(text: str, options: GenerationOptions | None = None) -> GenerationRequest:
    """A request of one user turn."""
    return TextGenerationRequest(messages=[{"role": "user", "content": text}], options=options)


def greedy(**more: Any) -> GenerationOptions:
    """Greedy options for at most `LENGTH` tokens, with `more` options."""
    return GenerationOptions(**{"max_new_tokens": LENGTH, "temperature": 0.0, **more})


def answers(slots: Sequence[Slot[GenerationResult]]) -> list[GenerationResult]:
    """The results of slots that must all have succeeded."""
    for position, slot in enumerate(slots):
        expect(is_ok(slot), f"slot {position} failed: {slot}")
    return [slot.unwrap() for slot in slots]


def answer(
    route: Route, request: GenerationRequest, options: GenerationOptions | None = None
) -> GenerationResult:
    """The result of a request that must succeed."""
    return answers(run(route, [request], options))[0]


def slots_of(route: Route, options: GenerationOptions) -> Sequence[Slot[GenerationResult]]:
    """The slot of each of `PROMPTS` with these options."""
    return run(route, [chat(text) for text in PROMPTS], options)


def to_all(route: Route, options: GenerationOptions) -> list[GenerationResult]:
    """The result of each of `PROMPTS` with these options; all must succeed."""
    return answers(slots_of(route, options))


def output(result: GenerationResult) -> tuple[int, ...] | str:
    """What was generated: ids, or of an engine that gives none the text."""
    return result.token_ids or result.text


def full(route: Route, **more: object) -> GenerationOptions:
    """Greedy options for answers that go on past the model's end tokens, where the engine can, with
    `more` options.
    """
    return (
        greedy(**{"stop": StopOptions(ignore_eos=True), **more})
        if honours(route, "ignore_eos")
        else greedy(**more)
    )


def error_of(slot: Slot[GenerationResult]) -> GenerationError | None:
    """The error of a slot; None where it succeeded."""
    return slot.swap().value_or(None)


def longest(route: Route) -> tuple[GenerationRequest, GenerationResult]:
    """The request with the longest answer, and that answer."""
    text, best = max(
        zip(PROMPTS, to_all(route, full(route)), strict=True), key=lambda pair: len(pair[1].text)
    )
    expect(
        best.completion_tokens >= 8,
        "the answers are too short to test with: choose a model that generates at least 8 tokens",
    )
    return chat(text), best


def stopping(free: GenerationResult, **more: Any) -> StopOptions:
    """What ends a row with `more` options, past the model's end tokens if `free` was made so."""
    ignores = free.options.stop.ignore_eos if free.options.stop is not None else None
    return StopOptions(**{"ignore_eos": ignores, **more})


def honours(route: Route, option: str) -> bool:
    """Whether the route's engine has this capability."""
    return option in route.engine.capabilities.honours


def needs(*names: str) -> Callable[[Callable[[Route], None]], Callable[[Route], None]]:
    """A check of the engines that honour all of these; the others pass."""

    def checked(check: Callable[[Route], None]) -> Callable[[Route], None]:
        @functools.wraps(check)
        def where_honoured(route: Route) -> None:
            if all(honours(route, name) for name in names):
                check(route)

        return where_honoured

    return checked


def refuses(route: Route, options: GenerationOptions, option: str) -> None:
    """Expect that the option is refused by name."""
    error = error_of(run(route, [chat("Hi")], options)[0])
    expect(
        isinstance(error, UnsupportedOption) and error.option == option,
        f"{option} is not honoured, so it must be UnsupportedOption, not {error}",
    )


def refused(slot: Slot[GenerationResult], option: str) -> bool:
    """Whether the option was refused by name."""
    error = error_of(slot)
    return isinstance(error, UnsupportedOption) and error.option == option


def same(first: GenerationResult, second: GenerationResult) -> bool:
    """Whether two results have the same output, prompt and grid."""
    return all(
        getattr(first, name) == getattr(second, name)
        for name in (
            "text",
            "raw_text",
            "token_ids",
            "finish",
            "stop",
            "prompt_token_ids",
            "image_grid_thw",
        )
    )


def expect_same(
    first: Sequence[GenerationResult], second: Sequence[GenerationResult], message: str
) -> None:
    """Raise `AssertionError` with these words unless the results are the same, one by one."""
    expect(len(first) == len(second) and all(map(same, first, second)), message)


def engine_ids(
    route: Route, request: GenerationRequest, options: GenerationOptions
) -> tuple[int, ...]:
    """The ids that the engine itself generates for a row, before pipegen cuts it."""
    done = advance(route, [Row(0, slot) for slot in check_settings(options).batch([request])])
    if not done.calls:
        raise AssertionError(f"the request does not reach the engine: {done.ended}")
    _, call = done.calls[0]
    slot: Slot[Raw] = call.backend.generate([call.input])[0]
    expect(is_ok(slot), f"the row failed: {slot}")
    return slot.unwrap().token_ids


def red_square() -> bytes:
    """A 64x64 PNG of one colour."""
    return png_of(64, 64, lambda x, y: b"\xdc\x28\x28")


def drawn_image(width: int, height: int, pattern: int) -> bytes:
    """A PNG of two colours: one in the upper half (0), on the left (1), or in every other square of
    8 pixels (2).
    """

    def pixel(x: int, y: int) -> bytes:
        first = (y < height // 2, x < width // 2, (x // 8 + y // 8) % 2 == 0)[pattern]
        return b"\x10\x30\xe0" if first else b"\xf0\xe0\x20"

    return png_of(width, height, pixel)
