"""A batch through a pipe: `run` and `arun` take N requests and give N slots;
`pipegen.drivers.mapping` goes on to any number.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any, TypeVar

from pipegen.core.pipe import Pipe
from pipegen.core.slots import Batch, Slot
from pipegen.drivers.arguments import Options, check_run, with_option_words
from pipegen.drivers.drive import Drive
from pipegen.drivers.drive_parts import WholeBatch
from pipegen.drivers.light_work import is_light
from pipegen.drivers.naming import name_bug
from pipegen.records.parse_request import Request
from pipegen.records.requests import GenerationRequest, ImagePolicy, RequestPolicy

B = TypeVar("B")


@with_option_words
def run(
    route: Pipe[GenerationRequest, B],
    requests: Iterable[Request],
    options: Options | None = None,
    *,
    image_policy: ImagePolicy | None = None,
    policy: RequestPolicy | None = None,
) -> Batch[B]:
    """Generate for a batch: N requests in, N slots out, in order, with one engine call for all of
    them that are valid.

    route: a route such as `pg.backends.hf(...)`, or a pipe made with `>>`.
    requests: records or plain data; all are read before the call.
    options: for every request; a request's own options override them.
    image_policy: which images and videos may be read; by default any file and no URL.
    policy: how much one request may ask for.

    A failed request raises nothing, and neither does an engine that dies: their slots have the
    error. An empty batch calls no engine and loads nothing. Raises `TypeError` for what is no pipe
    and no requests, and `InvalidField` or `UnknownField` for wrong options of the call. A bug of a
    stage or an engine comes through, with a note that names stage and request.

    >>> from pipegen.core.pipe import pure
    >>> run(pure("prompt", lambda request: request.prompt), [{"prompt": "Hi"}])
    (<Success: Hi>,)
    """
    batch = check_run(route, options, image_policy, policy).batch(requests)
    runner, slots = Drive(route, WholeBatch(enumerate(batch))), list[Slot[B]]()
    try:
        while not runner.exhausted:
            slots += [slot for _, slot in runner.round()]
        return tuple(slots)
    except Exception as raised:
        name_bug(raised, batch)
        raise
    finally:
        runner.close()


@with_option_words
async def arun(
    route: Pipe[GenerationRequest, B],
    requests: Iterable[Request],
    options: Options | None = None,
    *,
    image_policy: ImagePolicy | None = None,
    policy: RequestPolicy | None = None,
) -> Batch[B]:
    """As `run`, for asynchronous code; the same slots."""
    batch = await check_run(route, options, image_policy, policy).batch_beside(requests)
    try:
        return await adrive(route, batch)
    except Exception as raised:
        name_bug(raised, batch)
        raise


async def adrive(pipe: Pipe[Any, B], batch: Iterable[Slot[object]]) -> Batch[B]:
    """As `drive`, for asynchronous code."""
    slots = tuple(batch)
    rounds = Drive(pipe, WholeBatch(enumerate(slots))).rounds(light=is_light(pipe, slots))
    async with contextlib.aclosing(rounds):
        return tuple([slot async for numbered_slots in rounds for _, slot in numbered_slots])
