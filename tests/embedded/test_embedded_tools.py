"""The embedded model with two tools: it calls the right one with the right arguments, and answers
with what the tool gave. No pair of arguments here is in the training data.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

import pytest
from training import tool_tasks, words as w
from training.tool_tasks import is_held_out

import pipegen as pg

pytest.importorskip("torch")

RNG = random.Random(20)
PRICES = {item: RNG.randrange(1, 1000) for item in w.WORDS[:32]}
QUESTIONS = 40
"""Of each kind."""

EngineRequest = tuple[str, list[tuple[str, dict[str, Any]]], str]
"""A question, the calls it needs, and the answer."""


def price(item: str) -> int:
    """What an item costs."""
    return PRICES[item]


def add(a: int, b: int) -> int:
    """The sum of two numbers."""
    return a + b


def sums() -> list[EngineRequest]:
    found: list[EngineRequest] = []
    while len(found) < QUESTIONS:
        a, b = RNG.randrange(1000), RNG.randrange(1000)
        if is_held_out(a, b):
            found.append((f"What is {a} + {b}?", [("add", {"a": a, "b": b})], str(a + b)))
    return found


def prices() -> list[EngineRequest]:
    return [
        (
            f"What does the {item} cost?",
            [("price", {"item": item})],
            f"The {item} costs {PRICES[item]}."
            if item in PRICES
            else f"I do not know what the {item} costs.",
        )
        for item in w.WORDS
    ]


def pairs() -> list[EngineRequest]:
    found: list[EngineRequest] = []
    while len(found) < QUESTIONS:
        one, other = RNG.sample(w.WORDS, 2)
        if not is_held_out(one, other) or (one not in PRICES and other not in PRICES):
            continue
        calls: list[tuple[str, dict[str, Any]]] = [
            ("price", {"item": one}),
            ("price", {"item": other}),
        ]
        missing = [item for item in (one, other) if item not in PRICES]
        if missing:
            answer = f"I do not know what the {missing[0]} costs."
        else:
            calls.append(("add", {"a": PRICES[one], "b": PRICES[other]}))
            answer = f"The {one} and the {other} cost {PRICES[one] + PRICES[other]}."
        found.append((f"What do the {one} and the {other} cost?", calls, answer))
    return found


def request(question: str) -> Mapping[str, Any]:
    return {"messages": [{"role": "user", "content": question}]}


@pytest.mark.slow
def test_95_of_100_loops_over_held_out_arguments_are_right_from_call_to_answer() -> None:
    wanted = [*sums(), *prices(), *pairs()]
    with pg.backends.hf("embedded") as route:
        slots = pg.run(
            pg.turns(route, pg.tools([price, add])), [request(question) for question, *_ in wanted]
        )
    wrong = []
    for (question, calls, answer), slot in zip(wanted, slots, strict=True):
        result = slot.unwrap()
        functions = [call["function"] for turn in result.rounds for call in turn.tool_calls]
        made = [(one["name"], json.loads(one["arguments"])) for one in functions]
        if (made, result.text) != (calls, answer):
            wrong.append((question, made, result.text))
    assert len(wrong) <= 0.05 * len(wanted), wrong


def test_the_end_token_of_a_forced_call_is_as_likely_as_the_model_finds_it_there() -> None:
    limits = {"type": "integer", "maximum": 9}
    schema = {
        "type": "object",
        "properties": {"a": limits, "b": limits},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    tool = {"type": "function", "function": {"name": "add", "parameters": schema}}
    asked = {**request("What is 3 + 4?"), "tools": [tool]}
    with pg.backends.hf("embedded") as route:
        result = pg.run(route, [asked], {"tool_choice": "add", "logprobs": True})[0].unwrap()
    assert result.logprobs is not None and result.logprobs[-1].logprob > -0.01
    assert result.forced[-1] == len(result.token_ids) - 1
    assert not result.rollout.mask[-1]


def test_held_out_arguments_are_not_in_the_training_data() -> None:
    rng = random.Random(1)
    for _ in range(500):
        tools = tool_tasks.tools(rng)
        for one in tool_tasks.query(rng, tools, rng.choice(("add", "pair"))):
            for line in one.answer.split("\n"):
                if line.startswith('{"name": "add"'):
                    values = json.loads(line)["arguments"]
                    assert not is_held_out(values["a"], values["b"])
