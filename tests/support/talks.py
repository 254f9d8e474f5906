"""Conversations for tests: what is said turn by turn, whatever is answered. Drawn by a seed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

from returns.result import Failure, Success

import pipegen as pg
from pipegen.report.diff import Compared, compare
from pipegen.testing.image_files import image_file
from pipegen.testing.parity import SIZES

__all__ = ["TOOLS", "Talk", "broken_prefixes", "greedy", "held", "parted", "sampled"]

Options = Callable[[random.Random], dict[str, Any]]
TOOLS = (
    {
        "type": "function",
        "function": {
            "name": "get",
            "description": "gets",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    },
)
CALL = r'\[call\]\n\{"name": "get", "arguments": \{"city": "[a-z]{2,5}"\}\}\n\[/call\]'
"""A call as `with_calls` writes it."""
WORDS = (
    "Describe the image.",
    "What is 12 + 30?",
    "Count from 1 to 12.",
    "And then?",
    "Привет, мир",
    "日本語",
    "🎈🎉",
    "é à ü",
    "\n\n",
    " ",
    "x = {1: [2]}",
    "<think>",
    "</think>",
    "<|im_end|>\n<|im_start|>system",
    "<|image_pad|>",
    "<tool_call>",
    "</tool_response>",
)


class Talk:
    """One conversation: text, tools and, where the model takes them, images.

    turns: how many answers there are. options: draws those of each turn. tools: whether there are
    tools in some conversations. calls: whether the form of some answers is that of a tool call.
    """

    def __init__(
        self, seed: str, turns: int, options: Options, *, images: bool, tools: bool, calls: bool
    ) -> None:
        self.name, self.left, self._options = seed, turns, options
        self._images, self._calls = images, calls
        self._draw = random.Random(seed)
        self._tools = self._draw.random() < 0.6 and tools
        self.results: list[pg.GenerationResult] = []
        self.failure: pg.GenerationError | None = None
        """Of the turn that failed: the conversation is over."""

    @property
    def over(self) -> bool:
        return not self.left or self.failure is not None

    def next(self) -> Any:
        """The request of the next turn."""
        self.left -= 1
        options = self._options(self._draw)
        if self._calls and self._tools and self._draw.random() < 0.3:
            options |= {"stop": {}, "max_new_tokens": 60, "structured": {"regex": CALL}}
        if self.results:
            last = self.results[-1]
            images = self._shown() if self._draw.random() < 0.3 else []
            return last.then(self._said(last, images), options=options)
        system = [{"role": "system", "content": "Be brief."}] if self._draw.random() < 0.3 else []
        images = self._shown() if self._draw.random() < 0.5 else []
        thinks = not self._tools and self._draw.random() < 0.5  # a form takes no thought
        return {
            "id": self.name,
            "messages": [*system, self._user(images)],
            "options": {**options, "chat": {"enable_thinking": thinks}},
            **({"tools": TOOLS} if self._tools else {}),
        }

    def answered(self, slot: Any) -> None:
        if pg.is_ok(slot):
            self.results.append(slot.unwrap())
        else:
            self.failure = slot.failure()

    def _said(self, last: pg.GenerationResult, images: list[Any]) -> Any:
        """The results of tools, the words of a user, or both."""
        calls = [call["id"] for call in last.tool_calls] or ["call00000"]
        if not last.tool_calls and not (self._tools and self._draw.random() < 0.4):
            return [self._user(images)]
        told = [
            {"role": "tool", "tool_call_id": call, "name": "get", "content": self._words()}
            for call in calls
        ]
        return [*told, self._user(images)] if self._draw.random() < 0.3 else told

    def _words(self) -> str:
        return " ".join(self._draw.choices(WORDS, k=self._draw.choice((1, 1, 2, 4))))

    def _user(self, images: list[Any]) -> dict[str, Any]:
        text = {"type": "text", "text": self._words()}
        return {"role": "user", "content": [*images, text] if images else text["text"]}

    def _shown(self) -> list[dict[str, Any]]:
        made = []
        for _ in range(self._draw.choice((1, 1, 2)) if self._images else 0):
            width, height = self._draw.choice(SIZES)
            mode = self._draw.choice(("RGB", "L"))
            made.append(
                {"type": "image", "image": image_file(width=width, height=height, mode=mode)}
            )
        return made


def with_calls(route: pg.Route) -> pg.Route:
    """The route with a chat template that writes calls without control tokens: a form may have
    them.
    """
    template = route.engine.renderer.template
    for tag in ("call", "/call"):
        template = template.replace(f"<{tag.replace('call', 'tool_call')}>", f"[{tag}]")
    return route.with_options(pg.GenerationOptions(chat=pg.ChatTemplateOptions(template=template)))


def held(
    route: pg.Route,
    seed: str,
    count: int,
    options: Options,
    *,
    turns: int = 10,
    images: bool = True,
    tools: bool = True,
    calls: bool = True,
) -> list[Talk]:
    """So many conversations, all of them a turn at a time."""
    route = with_calls(route)
    more: dict[str, bool] = {"images": images, "tools": tools, "calls": calls}
    talks = [Talk(f"{seed}{number}", turns, options, **more) for number in range(count)]
    while going := [talk for talk in talks if not talk.over]:
        for talk, slot in zip(going, pg.run(route, [talk.next() for talk in going]), strict=True):
            talk.answered(slot)
    return talks


def greedy(draw: random.Random) -> dict[str, Any]:
    """Options whose answers are the same on every engine: of many lengths, ended in every way."""
    stops = draw.choice(((), (), ("e",), ("3", " a"), ("\n",)))
    return {
        "max_new_tokens": draw.choice((1, 2, 7, 16)),
        "stop": {"stop": stops, "ignore_eos": draw.random() < 0.3},
        "decode": {"skip_special_tokens": draw.random() < 0.7},
    }


def sampled(draw: random.Random) -> dict[str, Any]:
    """The same, with answers that are drawn."""
    return {**greedy(draw), "temperature": draw.choice((1.0, 1.7)), "seed": draw.randrange(2**63)}


def parted(talks: Sequence[Talk], others: Sequence[Talk]) -> list[Compared]:
    """The turns that differ."""
    found = compare(*map(_turns, (talks, others)))
    return [one for one in found if one.difference is not None]


def _turns(talks: Sequence[Talk]) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for talk in talks:
        slots = [*map(Success, talk.results), *([Failure(talk.failure)] if talk.failure else [])]
        named.update({f"{talk.name} turn {at}": slot for at, slot in enumerate(slots)})
    return named


def broken_prefixes(talks: Sequence[Talk]) -> list[str]:
    """The turns whose prompts do not begin with the ids of the turns before, or that have other
    images than those.
    """
    found = []
    for talk in talks:
        for number, (one, two) in enumerate(itertools.pairwise(talk.results), 1):
            before = (*one.prompt_token_ids, *one.token_ids)
            same = two.prompt_token_ids[: len(before)] == before
            seen = two.image_digests[: len(one.image_digests)] == one.image_digests
            if not (same and seen and two.exact):
                found.append(f"{talk.name}: turn {number}")
    return found
