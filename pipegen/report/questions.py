"""What `pipegen verify` asks where no requests are given: turns of every kind, many scripts, long
prompts, images, tools.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator

from pipegen.backends.checkpoint.positions import Boundary
from pipegen.media.png import png_of

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


def prompts() -> Iterator[dict[str, object]]:
    """Requests of text. Each has an id that says what it is.

    >>> len(list(prompts())), next(prompts())["id"]
    (44, 'question-1')
    """
    for index, question in enumerate(_QUESTIONS, 1):
        yield {"id": f"question-{index}", "messages": [{"role": "user", "content": question}]}
    for index, question in enumerate(_QUESTIONS, 1):
        system = {"role": "system", "content": _SYSTEMS[index % len(_SYSTEMS)]}
        yield {
            "id": f"system-{index}",
            "messages": [system, {"role": "user", "content": question}],
        }
    for index, question in enumerate(_QUESTIONS[:5], 1):
        turns = [
            ("user", "Hello!"),
            ("assistant", "Hello! How can I help you?"),
            ("user", question),
        ]
        yield {
            "id": f"turns-{index}",
            "messages": [{"role": role, "content": text} for role, text in turns],
        }
    for sentences in _LONG:
        yield long_prompt(f"long-{sentences}", sentences)


_FEW = 16
"""Tokens behind a boundary: engines count from it, or from a position beside it."""
_MOST = 16_384
"""A reference reads no longer prompts than this, unless a file asks for them."""


def beyond(
    lengths: Iterable[Boundary], count: Callable[[str], int], room: int | None
) -> Iterator[dict[str, object]]:
    """A request a little longer than each of these lengths, in tokens by `count`; none for those
    that have no room, or take a reference too long.

    >>> [
    ...     request["id"]
    ...     for request in beyond(
    ...         [Boundary("sliding_window", 100), Boundary("chunk_size", 10**6)],
    ...         lambda text: len(text.split()),
    ...         4096,
    ...     )
    ... ]
    ['beyond sliding_window=100']
    """
    for name, tokens in ((length.name, length.tokens) for length in lengths):
        size = tokens + _FEW
        if size > _MOST or (room is not None and size > room):
            continue
        sentences = 1
        while count(_long_text(sentences)) < size:
            sentences += max(1, sentences // 20)
        yield long_prompt(f"beyond {name}={tokens}", sentences)


def not_reached(lengths: Iterable[Boundary], longest: int, limit: int | None) -> Iterator[str]:
    """Why it is not known how a server computes beyond these lengths, and what to do: no judged
    answer goes on so far as one of this number of tokens, prompt included. Behind the limit of a
    row there is nothing to judge.

    >>> lengths = [Boundary("sliding_window", 100), Boundary("chunk_size", 32768)]
    >>> [*not_reached(lengths, 4000, 65536)]
    ['beyond 32,768 tokens (chunk_size): no judged answer is so long, and without a file prompts have at most 16,384 tokens; ask such a request with a file']
    >>> [*not_reached(lengths, 4000, 32768)]
    []
    """
    for name, tokens in ((length.name, length.tokens) for length in lengths):
        if longest <= tokens and (limit is None or tokens < limit):
            most = f", and without a file prompts have at most {_MOST:,} tokens"
            yield (
                f"beyond {tokens:,} tokens ({name}): no judged answer is so"
                f" long{most if tokens + _FEW > _MOST else ''}; ask such a request with a file"
            )


def long_prompt(name: str, sentences: int) -> dict[str, object]:
    """A request of about ten tokens for each of these sentences."""
    return {"id": name, "messages": [{"role": "user", "content": _long_text(sentences)}]}


def _long_text(sentences: int) -> str:
    text = " ".join(
        f"Item number {index} costs {index * 7 % 101} coins." for index in range(sentences)
    )
    return f"{text}\nWhat does item number 3 cost?"


_LOOKS = (
    "Describe the image.",
    "What colour is the background?",
    "List the shapes.",
    "How many shapes are there?",
)


def with_images() -> Iterator[dict[str, object]]:
    """Requests with an image of several colours, each of another size.

    >>> [request["id"] for request in with_images()]
    ['image-1', 'image-2', 'image-3', 'image-4']
    """
    for index, question in enumerate(_LOOKS, 1):
        url = "data:image/png;base64," + base64.b64encode(_png(64 * index, 96, index)).decode()
        content = [
            {"type": "image_url", "image_url": {"url": url}},
            {"type": "text", "text": question},
        ]
        yield {"id": f"image-{index}", "messages": [{"role": "user", "content": content}]}


def _png(width: int, height: int, stripe: int) -> bytes:
    """An image file: a red square and a blue bar on a ground that grows brighter; no colour is
    another one's mirror.
    """

    def pixel(x: int, y: int) -> bytes:
        if abs(x - width // 3) < 18 and abs(y - height // 3) < 18:
            return bytes((214, 40, 30))
        if y > height * 3 // 4 and x % 64 < 16 * stripe:
            return bytes((20, 60, 200))
        return bytes((250 - x * 60 // width, 236, 170 + y * 60 // height))

    return png_of(width, height, pixel)


_TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a town.",
        "parameters": {
            "type": "object",
            "properties": {"town": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["town"],
        },
    },
}


def with_tools() -> Iterator[dict[str, object]]:
    """Requests with a tool.

    >>> [request["id"] for request in with_tools()]
    ['tools-1', 'tools-2']
    """
    for index, question in enumerate(("What will the weather be in Oslo?", "Say hello."), 1):
        yield {
            "id": f"tools-{index}",
            "messages": [{"role": "user", "content": question}],
            "tools": [_TOOL],
        }
