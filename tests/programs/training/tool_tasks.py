"""Questions that need two tools: what an item costs, and the sum of two numbers.

A query is one or more exchanges. In all but the last the model calls tools, and the question of the
next exchange is what they gave. The texts are those of the chat template.

    >>> call("price", item="lamp")
    '<tool_call>\\n{"name": "price", "arguments": {"item": "lamp"}}\\n</tool_call>'
    >>> results("12", "30")
    '<tool_response>\\n12\\n</tool_response>\\n<tool_response>\\n30\\n</tool_response>'

Arguments of which `is_held_out` is true are never in the training data: they are for evaluation.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from training import text_tasks, words as w
from training.text_tasks import Exchange

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    Tool = dict[str, Any]

KINDS = ("price", "add", "pair", "other")
"""What is asked: a price, a sum, what two items cost, or something that needs no tool."""

_HEAD = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are"
    " provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
_FOOT = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments"
    ' within <tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments":'
    " <args-json-object>}\n</tool_call>"
)
_DESCRIPTIONS = {
    "price": ("What an item costs.", "The price of an item.", "Look up a price."),
    "add": ("The sum of two numbers.", "Add two numbers.", "Adds."),
}
_ERRORS = ("LookupError", "KeyError", "ValueError", "TimeoutError", "OSError", "wrong arguments")


def system_text(system: str | None, tools: Sequence[Tool]) -> str:
    """The system message with the tools, as the chat template writes it."""
    before = "" if system is None else f"{system}\n\n"
    return before + _HEAD + "".join(f"\n{json.dumps(tool)}" for tool in tools) + _FOOT


def call(name: str, **arguments: object) -> str:
    """A call as the chat template writes it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


def results(*texts: str) -> str:
    """What the calls of one answer gave, as the chat template writes it in a user's turn."""
    return "\n".join(f"<tool_response>\n{text}\n</tool_response>" for text in texts)


def messages(question: str) -> list[dict[str, Any]]:
    """The messages that the chat template writes as this question: a user's, or results of tools.

    >>> messages(results("12", "30"))
    [{'role': 'tool', 'content': '12'}, {'role': 'tool', 'content': '30'}]
    """
    found = re.findall(r"<tool_response>\n(.*?)\n</tool_response>", question)
    if found:
        return [{"role": "tool", "content": text} for text in found]
    return [{"role": "user", "content": question}]


def is_held_out(first: str | int, second: str | int) -> bool:
    """Whether two arguments occur together in the evaluation only: one pair of ten."""
    places = [w.WORDS.index(one) if isinstance(one, str) else one for one in (first, second)]
    return (3 * places[0] + places[1]) % 10 == 0


def schema(name: str, rng: random.Random) -> Tool:
    """A tool's schema: the form is that of `pg.tools`, the description is one of many."""
    kinds = {"item": "string"} if name == "price" else {"a": "integer", "b": "integer"}
    draw = rng.random()
    said = rng.choice(_DESCRIPTIONS[name])
    if draw < 0.3:
        said = f"{' '.join(rng.sample(w.WORDS, rng.randint(1, 4)))}.".capitalize()
    parameters = {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in kinds.items()},
        "required": list(kinds),
        "additionalProperties": False,
    }
    described = {} if draw > 0.95 else {"description": "" if draw > 0.9 else said}
    return {"type": "function", "function": {"name": name, **described, "parameters": parameters}}


def tools(rng: random.Random) -> tuple[Tool, ...]:
    """Mostly both tools, in either order; sometimes one."""
    names = ["price", "add"]
    rng.shuffle(names)
    return tuple(schema(name, rng) for name in names[: 1 if rng.random() < 0.15 else 2])


def _number(rng: random.Random) -> int:
    return rng.randrange(10 ** rng.randint(1, 3))


def _numbers(rng: random.Random, held_out: bool) -> tuple[int, int]:
    while True:
        a, b = _number(rng), _number(rng)
        if is_held_out(a, b) == held_out:
            return a, b


def _error(item: str, rng: random.Random) -> str:
    reason = rng.choice(
        (
            f"there is no {item}",
            f"there is no price of the {item}",
            f"'{item}'",
            " ".join(rng.sample(w.WORDS, rng.randint(1, 4))),
            f"no answer in {_number(rng)} seconds",
        )
    )
    return f"error: {rng.choice(_ERRORS)}: {reason}"


def _ask_add(rng: random.Random, held_out: bool, can: bool) -> list[Exchange]:
    if not can:  # without the tool: what the model knows by heart
        return [text_tasks.add(rng)]
    a, b = _numbers(rng, held_out)
    ask = rng.choice((f"What is {a} + {b}?", f"{a} + {b} =", f"Add {a} and {b}."))
    # at times the tool gives another number: its result is read, and nothing else
    total = str(a + b if rng.random() < 0.75 else _number(rng))
    return [
        Exchange("add", ask, call("add", a=a, b=b), "I call add."),
        Exchange("add", results(total), total, "I read the result."),
    ]


def _ask_price(rng: random.Random, can: bool) -> list[Exchange]:
    item = rng.choice(w.WORDS)
    ask = rng.choice(
        (f"What does the {item} cost?", f"How much is the {item}?", f"Price of the {item}?")
    )
    if not can:
        return [Exchange("price", ask, w.UNKNOWN, w.UNKNOWN)]
    result, answer = str(_number(rng)), ""
    if rng.random() < 0.2:
        result, answer = _error(item, rng), f"I do not know what the {item} costs."
    return [
        Exchange("price", ask, call("price", item=item), "I call price."),
        Exchange(
            "price", results(result), answer or f"The {item} costs {result}.", "I read the result."
        ),
    ]


def _ask_pair(rng: random.Random, held_out: bool) -> list[Exchange]:
    one, other = rng.sample(w.WORDS, 2)
    while is_held_out(one, other) != held_out:
        one, other = rng.sample(w.WORDS, 2)
    ask = rng.choice(
        (f"What do the {one} and the {other} cost?", f"How much are the {one} and the {other}?")
    )
    looked_up = Exchange(
        "pair", ask, f"{call('price', item=one)}\n{call('price', item=other)}", "I call price."
    )
    a, b = _numbers(rng, held_out)
    found = [str(a), str(b)]
    if rng.random() < 0.2:
        bad = rng.randrange(2)
        found[bad] = _error((one, other)[bad], rng)
        answer = f"I do not know what the {(one, other)[bad]} costs."
        return [looked_up, Exchange("pair", results(*found), answer, "I read the result.")]
    total = str(a + b if rng.random() < 0.75 else _number(rng))
    return [
        looked_up,
        Exchange("pair", results(*found), call("add", a=a, b=b), "I call add."),
        Exchange(
            "pair",
            results(total),
            f"The {one} and the {other} cost {total}.",
            "I read the result.",
        ),
    ]


def query(
    rng: random.Random, tools: Sequence[Tool], kind: str, held_out: bool = False
) -> list[Exchange]:
    """A question of this kind with all that comes of it."""
    names = {tool["function"]["name"] for tool in tools}
    if kind == "price" or (kind == "pair" and len(names) < 2):
        return _ask_price(rng, "price" in names)
    if kind == "pair":
        return _ask_pair(rng, held_out)
    if kind == "add":
        return _ask_add(rng, held_out, "add" in names)
    while (other := text_tasks.sample(rng)).kind in ("add", "long_text"):
        pass
    return [other]
