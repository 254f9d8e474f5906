"""What an event loop does by itself, which costs less than another thread does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipegen.core.pipe import Pipe
from pipegen.core.slots import Slot, live
from pipegen.core.steps import Branch, Call
from pipegen.engines.model import reader_of
from pipegen.records.messages import TextPart
from pipegen.records.requests import GenerationRequest

FEW, SHORT = 8, 20_000
"""Requests, and characters or tokens of each, that are worked on within an event loop."""


def is_light(pipe: Pipe[Any, Any], batch: Sequence[Slot[object]]) -> bool:
    """Whether an event loop takes these requests through the pipe by itself, which costs less than
    another thread does. They are few and short and have no images, the stages are pipegen's own,
    and the rows are computed by a server of which the model has been read.
    """
    for step in pipe.steps:
        if isinstance(step, Branch):
            return False  # it may ask a function of the user's
        if isinstance(step, Call):
            engine: Any = step.backend
            read = reader_of(engine).known.get("model") is not None
            if not read or not getattr(engine, "elsewhere", False) or engine.plugins:
                return False
    few = len(batch) <= FEW and all(step.internal for step in pipe.steps)
    return few and all(map(_is_short, live(batch)))


def _is_short(request: object) -> bool:
    if not isinstance(request, GenerationRequest) or request.sources:
        return False
    texts: list[Any] = [request.prompt or request.prompt_token_ids or ""]
    for message in request.messages or ():
        content = message.content or ""
        texts += (
            [content]
            if isinstance(content, str)
            else [part.text for part in content if isinstance(part, TextPart)]
        )
    return sum(map(len, texts)) <= SHORT
