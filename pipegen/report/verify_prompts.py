"""The requests that `pipegen verify` asks where none are given: turns of every kind, many scripts, and long prompts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["prompts"]

_QUESTIONS = (
    "List the months of the year.",
    "What is 2 + 3? Answer with the number alone.",
    "Count from 1 to 12.",
    "Name three colours, one on each line.",
    "Write a short story about a cat and a lighthouse.",
    "Explain in two sentences why the sky is blue.",
    'Give a JSON object with the keys "name" and "age".',
    "Write a Python function that reverses a string.",
    "Translate to French: The train leaves at eight.",
    "Перечисли дни недели.",
    "日本の首都はどこですか。",
    "اكتب جملة قصيرة عن البحر.",
    "Repeat after me: one one one two two two three three three",
    "What comes after A, B, C, D?",
    "Summarise: the meeting was moved from Monday to Thursday, since half of the team is ill.",
    "  Two spaces before this,\n\ntwo line ends within, and a tab\tat the end.\t",
    "Is a tomato a fruit? Give reasons for both answers 🍅",
    "Sort these words: pear, apple, fig, melon, cherry",
)
_SYSTEMS = ("You are a helpful assistant.", "Answer in one short sentence.")
_LONG = (100, 400, 1600)
"""Sentences of the long prompts: about ten tokens each."""


def prompts() -> Iterator[dict[str, Any]]:
    """The requests, each with an id that says what it is.

    >>> len(list(prompts())), next(prompts())["id"]
    (44, 'question-1')
    """
    for number, question in enumerate(_QUESTIONS, 1):
        yield {"id": f"question-{number}", "messages": [{"role": "user", "content": question}]}
    for number, question in enumerate(_QUESTIONS, 1):
        system = {"role": "system", "content": _SYSTEMS[number % len(_SYSTEMS)]}
        yield {"id": f"system-{number}", "messages": [system, {"role": "user", "content": question}]}
    for number, question in enumerate(_QUESTIONS[:5], 1):
        turns = [("user", "Hello!"), ("assistant", "Hello! How can I help you?"), ("user", question)]
        yield {"id": f"turns-{number}", "messages": [{"role": role, "content": text} for role, text in turns]}
    for sentences in _LONG:
        text = " ".join(f"Item number {number} costs {number * 7 % 101} coins." for number in range(sentences))
        yield {"id": f"long-{sentences}", "messages": [{"role": "user", "content": f"{text}\nWhat does item number 3 cost?"}]}
