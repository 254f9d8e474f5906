"""Requests that are scored: questions with choices behind shared examples, conversations, ids, and
an empty context.
"""

from __future__ import annotations

import random
from typing import Any

import pipegen as pg
from pipegen.testing.image_files import image_file

__all__ = ["compared_prompts", "prompts_read", "scored_requests"]

WORDS = (
    *("the", "cat", "sat", "on", "a", "mat", "and", "saw", "two", "red", "birds", "fly", "over"),
    *("green", "hills"),
)


def scored_requests(*, images: bool) -> list[dict[str, Any]]:
    """The requests; each fifth question has an image where `images` is set."""
    draw = random.Random(0)

    def text(low: int, high: int) -> str:
        return " ".join(draw.choice(WORDS) for _ in range(draw.randrange(low, high)))

    shots, made = text(30, 31), list[dict[str, Any]]()
    for number in range(12):
        question = f"{shots}\nQuestion: {text(2, 9)}\nAnswer:"
        context: dict[str, Any] = (
            {"prompt": question}
            if number % 3
            else {"messages": [{"role": "user", "content": question}]}
        )
        if images and not number % 5:
            context = {
                "messages": [{"role": "user", "content": question}],
                "images": [image_file(width=40 + number, height=64)],
            }
        made += [{**context, "continuation": f" {text(1, 5)}"} for _ in range(3)]
    return [
        *made,
        {
            "prompt_token_ids": [70, 71, 72],
            "continuation": [draw.randrange(10, 150) for _ in range(60)],
        },
        {"prompt": "", "continuation": "a"},
    ]


def prompts_read(route: pg.Route, max_new_tokens: int = 0) -> list[pg.GenerationResult]:
    """The same contexts, with the log probabilities of their tokens, and an answer of so many
    tokens.
    """
    asked = [
        {name: request[name] for name in request if name != "continuation"}
        for request in scored_requests(images=False)
        if request.get("prompt") != ""
    ]
    options = {
        "prompt_logprobs": True,
        "temperature": 0.7,
        "seed": 1,
        "max_new_tokens": max_new_tokens,
    }
    read = [slot.unwrap() for slot in pg.run(route, asked, options)]
    assert max_new_tokens or all(
        one.finish is pg.Finish.LENGTH and one.token_ids == () for one in read
    )
    return read


def compared_prompts(
    wanted: list[pg.GenerationResult], found: list[pg.GenerationResult]
) -> tuple[int, float]:
    """How many tokens of prompts were compared, and the largest difference; `found` has the prompts
    twice.
    """
    pairs = list(zip([*wanted, *wanted], found, strict=True))
    assert all(
        one.prompt_token_ids == two.prompt_token_ids and (two.prompt_logprobs or ("",))[0] is None
        for one, two in pairs
    )
    values = [
        (a, b)
        for one, two in pairs
        for a, b in zip(one.prompt_logprobs or (), two.prompt_logprobs or (), strict=True)
        if a and b
    ]
    assert all(
        a.token_id == b.token_id
        and (a.top[0][0] == b.top[0][0] or abs(a.top[0][1] - b.top[0][1]) < 1e-4)
        for a, b in values
    )
    return len(values), max(abs(a.logprob - b.logprob) for a, b in values)
