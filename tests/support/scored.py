"""Requests that are scored: questions with choices behind shared examples, conversations, ids, and an empty context."""

from __future__ import annotations

import random
from typing import Any

from pipegen.testing.image_files import image_file

__all__ = ["scored_requests"]

WORDS = ("the", "cat", "sat", "on", "a", "mat", "and", "saw", "two", "red", "birds", "fly", "over", "green", "hills")


def scored_requests(*, images: bool) -> list[dict[str, Any]]:
    """The requests; each fifth question has an image where `images` is set."""
    draw = random.Random(0)

    def text(low: int, high: int) -> str:
        return " ".join(draw.choice(WORDS) for _ in range(draw.randrange(low, high)))

    shots, made = text(30, 31), list[dict[str, Any]]()
    for number in range(12):
        question = f"{shots}\nQuestion: {text(2, 9)}\nAnswer:"
        context: dict[str, Any] = {"prompt": question} if number % 3 else {"messages": [{"role": "user", "content": question}]}
        if images and not number % 5:
            context = {"messages": [{"role": "user", "content": question}], "images": [image_file(width=40 + number, height=64)]}
        made += [{**context, "continuation": f" {text(1, 5)}"} for _ in range(3)]
    return [*made, {"prompt_token_ids": [70, 71, 72], "continuation": [draw.randrange(10, 150) for _ in range(60)]}, {"prompt": "", "continuation": "a"}]
