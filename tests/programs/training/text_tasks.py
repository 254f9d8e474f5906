"""Text-only questions with their one right answer.

Every answer follows from the question alone, except for the kind `chance`, which is drawn from
fixed, uneven odds so that sampling has something to show while greedy decoding stays clear-cut.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from training import words as w

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence


@dataclass(frozen=True, slots=True)
class Exchange:
    """A question, its answer, and the thought that comes before the answer when thinking is on."""

    kind: str
    question: str
    answer: str
    thought: str


def compact_json(value: object) -> str:
    """JSON without spaces: fewer tokens, and one form only."""
    return json.dumps(value, separators=(",", ":"))


def _some_words(rng: random.Random, low: int, high: int) -> list[str]:
    """Different words, so that the place of each is plain."""
    return rng.sample(w.WORDS, rng.randint(low, high))


def echo(rng: random.Random) -> Exchange:
    """Say the same words again."""
    text = " ".join(_some_words(rng, 1, 6))
    ask = rng.choice(("Repeat: ", "Repeat after me: ", "Echo: "))
    return Exchange("echo", ask + text, text, "I repeat the words.")


def reverse(rng: random.Random) -> Exchange:
    """Say the words from last to first."""
    some = _some_words(rng, 2, 5)
    ask = rng.choice(("Reverse: ", "Reverse the words: "))
    return Exchange(
        "reverse", ask + " ".join(some), " ".join(reversed(some)), "I reverse the words."
    )


def edge_word(rng: random.Random) -> Exchange:
    """Name the first or the last word."""
    some = _some_words(rng, 2, 5)
    place = rng.choice(("first", "last"))
    answer = some[0] if place == "first" else some[-1]
    return Exchange(
        "edge_word",
        f"What is the {place} word: {' '.join(some)}",
        answer,
        f"I look at the {place} word.",
    )


def length(rng: random.Random) -> Exchange:
    """Count words."""
    some = _some_words(rng, 1, 6)
    return Exchange(
        "length", f"How many words: {' '.join(some)}", str(len(some)), "I count the words."
    )


def add(rng: random.Random) -> Exchange:
    """Add two numbers up to ten."""
    a, b = rng.randint(0, 10), rng.randint(0, 10)
    ask = rng.choice((f"What is {a} + {b}?", f"{a} + {b} =", f"Add {a} and {b}."))
    return Exchange("add", ask, str(a + b), f"I add {a} and {b}.")


def subtract(rng: random.Random) -> Exchange:
    """Take a number up to ten from one up to twenty."""
    b = rng.randint(0, 10)
    a = b + rng.randint(0, 10)
    ask = rng.choice((f"What is {a} - {b}?", f"{a} - {b} ="))
    return Exchange("subtract", ask, str(a - b), f"I subtract {b} from {a}.")


def count(rng: random.Random) -> Exchange:
    """Count up or down, at most ten numbers."""
    a = rng.randint(0, 20)
    b = a + rng.randint(1, 9)
    numbers = list(range(a, b + 1)) if rng.random() < 0.7 else list(range(b, a - 1, -1))
    first, last = numbers[0], numbers[-1]
    return Exchange(
        "count",
        f"Count from {first} to {last}.",
        ", ".join(map(str, numbers)),
        f"I count from {first} to {last}.",
    )


def _continue(rng: random.Random, items: Sequence[str]) -> tuple[str, str]:
    start = rng.randrange(len(items))
    run = [items[(start + i) % len(items)] for i in range(6)]
    return ", ".join(run[:3]), ", ".join(run[3:])


def continue_list(rng: random.Random) -> Exchange:
    """Three items are given, the next three are wanted."""
    draw = rng.random()
    if draw < 0.5:
        start, step = rng.randint(0, 10), rng.choice((1, 2, 5, 10))
        numbers = [str(start + step * i) for i in range(6)]
        given, wanted = ", ".join(numbers[:3]), ", ".join(numbers[3:])
    else:
        given, wanted = _continue(
            rng, w.DAYS if draw < 0.65 else w.MONTHS if draw < 0.8 else w.LETTERS[:20]
        )
    return Exchange("continue", f"Continue: {given}", wanted, "I continue the list.")


def known_list(rng: random.Random) -> Exchange:
    """Lists that are always the same."""
    ask, items = rng.choice(
        (
            ("List the days of the week.", w.DAYS),
            ("List the months of the year.", w.MONTHS),
            ("List the colors.", tuple(w.COLORS)),
            ("List the shapes.", w.SHAPES),
        )
    )
    return Exchange("list", ask, ", ".join(items), "I make a list.")


def capital(rng: random.Random) -> Exchange:
    """Capitals of a few countries."""
    country = rng.choice(tuple(w.CAPITALS))
    ask = rng.choice((f"What is the capital of {country}?", f"Capital of {country}?"))
    return Exchange(
        "capital",
        ask,
        f"The capital of {country} is {w.CAPITALS[country]}.",
        f"I think of {country}.",
    )


def opposite(rng: random.Random) -> Exchange:
    """Opposites of a few words."""
    word = rng.choice(tuple(w.OPPOSITES))
    return Exchange(
        "opposite", f"What is the opposite of {word}?", w.OPPOSITES[word], f"I think of {word}."
    )


def smalltalk(rng: random.Random) -> Exchange:
    """Greetings and what the model says about itself."""
    ask, answer = rng.choice(
        (
            ("Hello!", "Hello! How can I help you?"),
            ("Hi", "Hello! How can I help you?"),
            ("Who are you?", w.SELF),
            ("Thank you!", "You are welcome!"),
            ("How are you?", "I am fine, thank you!"),
            ("Say hello.", "Hello!"),
            ("What can you do?", w.ABILITIES),
        )
    )
    return Exchange("smalltalk", ask, answer, "I answer the user.")


def make_json(rng: random.Random) -> Exchange:
    """Turn a sentence into a JSON object."""
    name, age = rng.choice(w.NAMES), rng.randint(1, 99)
    ask = rng.choice(
        (f"Return JSON: {name} is {age} years old.", f"Make JSON: name {name}, age {age}")
    )
    return Exchange("make_json", ask, compact_json({"name": name, "age": age}), "I return JSON.")


def long_text(rng: random.Random) -> Exchange:
    """Longer fixed texts, two of them with an empty line inside."""
    ask, answer = rng.choice(
        (("Tell me a story.", w.STORY), ("Write a poem.", w.POEM), ("How do I make tea?", w.STEPS))
    )
    return Exchange("long_text", ask, answer, "I write a text.")


def unknown(rng: random.Random) -> Exchange:
    """Word salad: the honest answer is that the model does not know."""
    some = _some_words(rng, 1, 4)
    ask = rng.choice(
        ("What is a {}?", "Why {}?", "{}", "Tell me about {}.", "Who is the {}?")
    ).format(" ".join(some))
    return Exchange("unknown", ask, w.UNKNOWN, "I do not know that.")


def no_image(rng: random.Random) -> Exchange:
    """A question about an image that is not there."""
    ask = rng.choice(
        (
            "Describe the image.",
            "What is in the image?",
            "Detect all objects.",
            "How many shapes are there?",
        )
    )
    return Exchange("no_image", ask, w.NO_IMAGE, "I look for an image.")


def greet_name(rng: random.Random) -> Exchange:
    """The user's name; `recall_name` asks for it later."""
    name = rng.choice(w.NAMES)
    return Exchange(
        "greet_name", f"My name is {name}.", f"Nice to meet you, {name}!", "I greet the user."
    )


def recall_name(greeting: Exchange) -> Exchange:
    """The question that needs an earlier turn."""
    name = greeting.question.removeprefix("My name is ").removesuffix(".")
    return Exchange(
        "recall_name", "What is my name?", f"Your name is {name}.", "I look at the chat."
    )


CHANCES: dict[str, dict[str, float]] = {
    "Flip a coin.": {"Heads": 0.7, "Tails": 0.3},
    "Pick a color.": {"red": 0.5, "green": 0.25, "blue": 0.15, "yellow": 0.1},
    "Roll a die.": {"6": 0.4, "1": 0.2, "2": 0.15, "3": 0.1, "4": 0.1, "5": 0.05},
}
"""Questions without one right answer, and the odds of their answers in the training data."""


def chance(rng: random.Random) -> Exchange:
    """Draw an answer from the odds in `CHANCES`."""
    ask = rng.choice(tuple(CHANCES))
    odds = CHANCES[ask]
    return Exchange(
        "chance", ask, rng.choices(tuple(odds), tuple(odds.values()))[0], "I let chance decide."
    )


TASKS: dict[str, tuple[float, Callable[[random.Random], Exchange]]] = {
    "echo": (6, echo),
    "reverse": (8, reverse),
    "edge_word": (3, edge_word),
    "length": (3, length),
    "add": (5, add),
    "subtract": (5, subtract),
    "count": (6, count),
    "continue": (5, continue_list),
    "list": (1.5, known_list),
    "capital": (2, capital),
    "opposite": (2, opposite),
    "smalltalk": (1.5, smalltalk),
    "make_json": (3, make_json),
    "long_text": (1, long_text),
    "unknown": (2, unknown),
    "no_image": (1, no_image),
    "greet_name": (1, greet_name),
    "chance": (1.5, chance),
}
"""Each kind of question with its share of the training data."""

_KINDS = tuple(TASKS)
_SHARES = tuple(share for share, _ in TASKS.values())


def sample(rng: random.Random, kind: str | None = None) -> Exchange:
    """One exchange, of the given kind or of a kind drawn by share."""
    return TASKS[kind or rng.choices(_KINDS, _SHARES)[0]][1](rng)


def plain_text(rng: random.Random) -> str:
    """Text without chat markup, for prompts that are plain completions."""
    draw = rng.randrange(5)
    if draw == 0:
        return w.STORY
    if draw == 1:
        return "The days of the week are " + ", ".join(w.DAYS) + "."
    if draw == 2:
        return "The months of the year are " + ", ".join(w.MONTHS) + "."
    if draw == 3:
        start = rng.randint(0, 10)
        return ", ".join(str(start + i) for i in range(10))
    return capital(rng).answer
