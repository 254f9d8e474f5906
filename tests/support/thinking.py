"""Requests that think before they answer, for the embedded model."""

from __future__ import annotations

import random
from typing import Any

from support.forms import drawn_form

import pipegen as pg
from pipegen.testing.ask import PROMPTS, chat, greedy

__all__ = ["thinking_requests"]


def thinking_requests(count: int) -> list[pg.GenerationRequest]:
    """Greedy requests, with short and long thoughts, with and without a form after them."""
    draw = random.Random("thinking")
    requests = []
    for number in range(count):
        form: dict[str, Any] = drawn_form(draw.randrange) if number % 3 else {}
        options = greedy(
            max_new_tokens=draw.choice((3, 24, 60)),
            max_thinking_tokens=draw.choice((0, 1, 4, 9, 40)),
            stop=pg.StopOptions(stop=("e",) if number % 4 == 3 else ()),
            structured=pg.StructuredOptions(**form) if form else None,
        )
        words = f"What is {draw.randrange(9)} + {draw.randrange(9)}?"
        requests.append(chat(PROMPTS[number % 4] if number % 2 else words, options))
    return requests
