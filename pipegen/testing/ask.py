"""Asking a route, for the conformance suite: requests that any model answers, and what their answers must have."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Any

from pipegen.drive import run
from pipegen.errors import UnsupportedOption
from pipegen.options import GenerationOptions, StopOptions
from pipegen.records import GenerationResult
from pipegen.requests import GenerationRequest, TextGenerationRequest
from pipegen.route import Route
from pipegen.slots import Slot, is_ok

__all__ = ["LENGTH", "PROMPTS", "answers", "chat", "expect", "greedy", "honours", "longest", "red_square", "refused", "refuses", "runs_on", "same"]

PROMPTS = ("List the months of the year.", "Count from 1 to 12.", "Tell me a story.", "Hi")
LENGTH = 24


def expect(holds: bool, words: str) -> None:
    """Raise `AssertionError` with these words unless it holds."""
    if not holds:
        raise AssertionError(words)


def chat(text: str, options: GenerationOptions | None = None) -> GenerationRequest:
    """A request of one user turn."""
    return TextGenerationRequest(messages=[{"role": "user", "content": text}], options=options)


def greedy(**more: Any) -> GenerationOptions:
    """Greedy options for at most `LENGTH` tokens, with more said."""
    return GenerationOptions(**{"max_new_tokens": LENGTH, "temperature": 0.0, **more})


def answers(slots: Sequence[Slot[GenerationResult]]) -> list[GenerationResult]:
    """The results of slots that must all have succeeded."""
    for position, slot in enumerate(slots):
        expect(is_ok(slot), f"slot {position} failed: {slot}")
    return [slot.unwrap() for slot in slots]


def longest(route: Route) -> tuple[GenerationRequest, GenerationResult]:
    """The request with the longest answer, and that answer: what stops are taken from."""
    requests = [chat(text) for text in PROMPTS]
    free = greedy(stop=StopOptions(ignore_eos=True)) if honours(route, "ignore_eos") else greedy()
    results = answers(run(route, requests, free))
    best = max(range(len(requests)), key=lambda row: len(results[row].text))
    expect(results[best].completion_tokens >= 8, "the model says too little to test with: choose one that generates at least 8 tokens")
    return requests[best], results[best]


def runs_on(free: GenerationResult) -> bool | None:
    """Whether that answer was made past the model's end tokens."""
    return free.options.stop.ignore_eos if free.options.stop is not None else None


def honours(route: Route, option: str) -> bool:
    """Whether the route's engine has this capability."""
    return option in route.engine.capabilities.honours


def refuses(route: Route, options: GenerationOptions, option: str) -> None:
    """Expect that an option which is not honoured is refused by name."""
    error = run(route, [chat("Hi")], options)[0].failure()
    expect(isinstance(error, UnsupportedOption) and error.option == option, f"{option} is not honoured, so it must be UnsupportedOption, not {error}")


def refused(slot: Slot[GenerationResult], option: str) -> bool:
    """Whether that option was refused by name: what an engine owes that cannot honour it together with the others."""
    error = None if is_ok(slot) else slot.failure()
    return isinstance(error, UnsupportedOption) and error.option == option


def same(first: GenerationResult, second: GenerationResult) -> bool:
    """Whether two results agree in everything that was generated, and in what it was generated from."""
    return all(
        getattr(first, name) == getattr(second, name) for name in ("text", "raw_text", "token_ids", "finish", "stop", "prompt_token_ids", "image_grid_thw")
    )


def red_square() -> bytes:
    """A 64x64 PNG of one colour, made without an imaging library."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    rows = b"".join(b"\0" + b"\xdc\x28\x28" * 64 for _ in range(64))
    header = struct.pack(">IIBBBBB", 64, 64, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
