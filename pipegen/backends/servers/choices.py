"""The `choices` of an answer in the OpenAI form, which vLLM's own endpoints use too: each read by itself, and all of them there.

>>> whole({"choices": [{"index": 1}, {"index": 0}]}, 2, lambda choice, place: Success(Completion(index=choice["index"], finish="stop"))).map(len)
<Success: 2>
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from returns.result import Failure, Success

from pipegen.backends.servers.reading import malformed
from pipegen.backends.servers.wire import Completion
from pipegen.core.slots import Slot, is_ok

__all__ = ["pieces", "whole"]

Read = Callable[[Mapping[str, Any], str], Slot[Completion]]
"""Reads one choice, given its place for messages."""


def pieces(answer: Any, asked: int, read: Read) -> Slot[tuple[Completion, ...]]:
    """What the choices of an answer, or of one event of a stream, bring: no more of them than were asked, and of no others.

    >>> pieces({"choices": [7]}, 1, lambda choice, place: Success(Completion())).failure().message
    'choices[0] is int, not an object'
    """
    choices = answer.get("choices") if isinstance(answer, Mapping) else None
    if not isinstance(choices, list):
        return malformed(f"choices is {type(choices).__name__}, not a list")
    if len(choices) > asked:
        return malformed(f"the answer holds {len(choices)} choices, and {asked} {'was' if asked == 1 else 'were'} asked")
    out: list[Completion] = []
    for position, choice in enumerate(choices):
        if not isinstance(choice, Mapping):
            return malformed(f"choices[{position}] is {type(choice).__name__}, not an object")
        made = read(choice, f"choices[{position}]")
        if not is_ok(made):
            return Failure(made.failure())
        if not 0 <= made.unwrap().index < asked:
            return malformed(f"choices[{position}].index is {made.unwrap().index!r:.40}, and {asked} {'was' if asked == 1 else 'were'} asked")
        out.append(made.unwrap())
    return Success(tuple(out))


def whole(answer: Any, asked: int, read: Read) -> Slot[tuple[Completion, ...]]:
    """The completions of a whole answer in the order of their indices: as many as were asked, and all of them ended."""
    found = pieces(answer, asked, read)
    if not is_ok(found):
        return found
    ordered = tuple(sorted(found.unwrap(), key=lambda completion: completion.index))
    indices = [completion.index for completion in ordered]
    if indices != list(range(asked)):
        return malformed(f"the answer holds choices {indices}, and {asked} were asked")
    if None in [completion.finish for completion in ordered]:
        return malformed("a choice of the answer has no finish_reason")
    return Success(ordered)
