"""A loop in a pipe: each result may send its row back with another request, as in a conversation.

>>> import pipegen as pg
>>> from pipegen.testing.fake import FakeEngine
>>> engine = FakeEngine(lambda encoded: f"{encoded.prompt.text}!<|im_end|>")
>>> def again(result):
...     return None if result.text == "Hi!!!" else pg.TextGenerationRequest(prompt=result.text)
>>> (slot,) = pg.run(repeat(pg.route(engine), again, limit=5), [{"prompt": "Hi"}])
>>> [result.text for result in slot.unwrap().rounds], slot.unwrap().rounds_end
(['Hi!', 'Hi!!', 'Hi!!!'], 'done')
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from returns.result import Success

from pipegen.core.errors import ContractError
from pipegen.core.fallback import loop
from pipegen.core.pipe import Pipe
from pipegen.core.slots import Slot
from pipegen.core.steps import GoOn
from pipegen.drivers.arguments import record_of, whole_number
from pipegen.records.parse_request import Request
from pipegen.records.requests import GenerationRequest
from pipegen.records.results import GenerationResult, RoundsEnd


def repeat(
    pipe: Pipe[GenerationRequest, GenerationResult],
    again: Callable[[GenerationResult], Request | None],
    *,
    limit: int,
) -> Pipe[GenerationRequest, GenerationResult]:
    """Run a pipe, and run it again with the request that `again(result)` gives, until it gives None
    or there were `limit` rounds.

    The result is that of the last round, with the results of all rounds in `.rounds`. `.rounds_end`
    is "done", or "limit" where `again` would have gone on. A round that fails fails the request.
    Each sample has its own rounds. `again` is called once for each round, and is to be a function
    of the result alone, as a stage is. Raises `TypeError` for what is no pipe, function or number
    of rounds.

    >>> from pipegen.drivers.batch import run
    >>> from pipegen.drivers.route import route
    >>> from pipegen.testing.fake import FakeEngine
    >>> request = GenerationRequest(prompt="Hi")
    >>> endless = repeat(route(FakeEngine("a")), lambda result: request, limit=3)
    >>> run(endless, [request])[0].unwrap().rounds_end
    'limit'
    """
    if not isinstance(pipe, Pipe) or not callable(again):
        raise TypeError(
            "repeat takes a pipe and a function that gives the next request or None, not"
            f" {pipe!r:.80} and {again!r:.80}"
        )
    limit = whole_number("limit", limit)

    def decide(rounds: tuple[Any, ...], request_before: object) -> GoOn | Slot[Any]:
        request = again(rounds[-1])
        if request is not None and len(rounds) < limit:
            return GoOn(record_of(request, "again"), rounds)
        return Success(ended(rounds, "done" if request is None else "limit"))

    return loop(
        pipe,
        decide,
        decides="again",
        name=f"repeat({pipe.name})",
        version=f"{getattr(again, '__qualname__', '')} at most {limit}",
    )


def ended(rounds: tuple[Any, ...], end: RoundsEnd) -> GenerationResult:
    """The result of a loop that has ended: that of its last round, with all rounds."""
    first, last = rounds[0], rounds[-1]
    if not isinstance(last, GenerationResult):
        raise ContractError(
            f"a pipe that is repeated gives a GenerationResult, and this one {type(last).__name__}:"
            " put the stage that changes it after the loop"
        )
    result_id = first.id if last.id is None else last.id
    changes: dict[str, Any] = {"id": result_id, "rounds": rounds, "rounds_end": end}
    samples = tuple([dataclasses.replace(sample, **changes) for sample in last.samples])
    return dataclasses.replace(last, **changes, samples=samples)
