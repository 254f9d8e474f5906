"""Any number of requests, fed to the engine as it has room for them; see `pipegen.drivers.drive`.

`imap` and `aimap` give the slots; `imap_keyed` and `aimap_keyed` give each with its request's key,
so that nothing has to be zipped together again.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from contextvars import copy_context
from typing import Any, TypeVar

from pipegen.core.foreign_calls import attempt
from pipegen.core.pipe import Pipe
from pipegen.core.slots import Slot
from pipegen.drivers.arguments import (
    Admission,
    Options,
    check_run,
    pair,
    pairs,
    require_iterable,
    with_option_words,
)
from pipegen.drivers.drive import Drive
from pipegen.drivers.drive_parts import NoRequest, ReadInput
from pipegen.drivers.tool_loop import CALLERS_LOOP
from pipegen.records.frozen import plain_number
from pipegen.records.parse_request import Request
from pipegen.records.requests import GenerationRequest, ImagePolicy, RequestPolicy

B = TypeVar("B")
K = TypeVar("K")
T = TypeVar("T")


@with_option_words
def imap(
    route: Pipe[GenerationRequest, B],
    requests: Iterable[Request],
    options: Options | None = None,
    *,
    in_flight: int | None = None,
    ordered: bool = True,
    image_policy: ImagePolicy | None = None,
    policy: RequestPolicy | None = None,
    isolate_bugs: bool = False,
) -> Iterator[Slot[B]]:
    """Generate for any number of requests: slots come in order, and the engine is fed while it
    works. The other arguments are those of `run`.

    requests: records or plain data; they are taken as there is room.
    in_flight: how many requests run at a time. By default, as many as keep the engine full.
    ordered: whether slots come in the order of the requests, or as they end.
    isolate_bugs: whether a bug fails its request alone, as in a job.

    Slots that end before their turn wait, up to 8 times as many as run. Then no request is taken
    until the slow one before them has ended. Raises as `run` does.

    >>> from pipegen.core.pipe import pure
    >>> endless = ({"prompt": str(n)} for n in range(10**9))
    >>> next(imap(pure("prompt", lambda request: request.prompt), endless, in_flight=2))
    <Success: 0>
    """
    require_iterable(requests)
    keyed = ((None, request) for request in requests)
    for _, slot in imap_keyed(
        route,
        keyed,
        options,
        in_flight=in_flight,
        ordered=ordered,
        image_policy=image_policy,
        policy=policy,
        isolate_bugs=isolate_bugs,
    ):
        yield slot


@with_option_words
def imap_keyed(
    route: Pipe[GenerationRequest, B],
    requests: Iterable[tuple[K, Request]],
    options: Options | None = None,
    *,
    in_flight: int | None = None,
    ordered: bool = True,
    image_policy: ImagePolicy | None = None,
    policy: RequestPolicy | None = None,
    isolate_bugs: bool = False,
) -> Iterator[tuple[K, Slot[B]]]:
    """As `imap`, for pairs of a key and a request: gives pairs of that key and the slot, failed
    ones too.

    A key is whatever the caller knows a request by: an id, a row of a table, an image and its
    folder, the request itself. No engine sees it, and keys may repeat.

    >>> from pipegen.core.pipe import pure
    >>> asked = [(("T-1", "hot"), {"prompt": "Hi"}), (("T-2", "hot"), {"messages": []})]
    >>> for key, slot in imap_keyed(pure("prompt", lambda request: request.prompt), asked):
    ...     print(key, slot.value_or("failed"))
    ('T-1', 'hot') Hi
    ('T-2', 'hot') failed
    """
    pairs(requests)
    yield from flow_of(
        route,
        _taken_from(iter(requests)),
        check_run(route, options, image_policy, policy),
        in_flight=in_flight,
        ordered=ordered,
        isolate_bugs=isolate_bugs,
    ).slots()


def flow_of(
    route: Pipe[GenerationRequest, Any],
    take: Callable[[], tuple[K, Any] | NoRequest],
    admission: Admission,
    *,
    in_flight: int | None,
    admits: bool = True,
    **settings: Any,
) -> Drive[K]:
    """The drive of these requests. Raises `ValueError` for a number that makes no sense."""
    in_flight = plain_number(in_flight)
    if in_flight is not None and (type(in_flight) is not int or in_flight < 1):
        raise ValueError(f"in_flight takes a whole number of at least 1, not {in_flight!r}")
    return Drive(route, ReadInput(take, admission, admits), in_flight=in_flight, **settings)


def _taken_from(pairs: Iterator[tuple[K, object]]) -> Callable[[], tuple[K, Any] | NoRequest]:
    def take() -> tuple[K, Any] | NoRequest:
        item = next(pairs, NoRequest.MORE)
        return item if isinstance(item, NoRequest) else pair(item)

    return take


@with_option_words
async def aimap(
    route: Pipe[GenerationRequest, B],
    requests: Iterable[Request] | AsyncIterable[Request],
    options: Options | None = None,
    *,
    in_flight: int | None = None,
    ordered: bool = True,
    image_policy: ImagePolicy | None = None,
    policy: RequestPolicy | None = None,
    isolate_bugs: bool = False,
) -> AsyncIterator[Slot[B]]:
    """As `imap`, for asynchronous code; `requests` may be asynchronous too. Stages and engines work
    in a thread.
    """
    require_iterable(requests, asynchronous=True)

    async def keyed() -> AsyncIterator[tuple[None, Request]]:
        async for request in _asynchronous(requests):
            yield None, request

    slots: Any = aimap_keyed(
        route,
        keyed(),
        options,
        in_flight=in_flight,
        ordered=ordered,
        image_policy=image_policy,
        policy=policy,
        isolate_bugs=isolate_bugs,
    )
    async with contextlib.aclosing(slots):
        async for _, slot in slots:
            yield slot


@with_option_words
async def aimap_keyed(
    route: Pipe[GenerationRequest, B],
    requests: Iterable[tuple[K, Request]] | AsyncIterable[tuple[K, Request]],
    options: Options | None = None,
    *,
    in_flight: int | None = None,
    ordered: bool = True,
    image_policy: ImagePolicy | None = None,
    policy: RequestPolicy | None = None,
    isolate_bugs: bool = False,
) -> AsyncIterator[tuple[K, Slot[B]]]:
    """As `imap_keyed`, for asynchronous code; `requests` may be asynchronous too."""
    import asyncio  # half of what `import pipegen` would cost

    pairs(requests, asynchronous=True)
    loop, has_room, arrived = asyncio.get_running_loop(), asyncio.Event(), deque[Any]()

    def take() -> tuple[K, Any] | NoRequest:
        if not arrived:
            return NoRequest.NOW
        item = arrived.popleft()
        if not arrived:
            loop.call_soon_threadsafe(has_room.set)
        if isinstance(item, BaseException):
            raise item
        return item if item is NoRequest.MORE else pair(item)

    flow = flow_of(
        route,
        take,
        check_run(route, options, image_policy, policy),
        in_flight=in_flight,
        ordered=ordered,
        isolate_bugs=isolate_bugs,
    )

    async def fetch() -> None:
        """Take requests while there is room for them."""
        async for item in _asynchronous(requests):
            arrived.append(item)
            flow.wake()
            while len(arrived) >= flow.room:
                has_room.clear()
                await has_room.wait()

    def fetched(task: asyncio.Task[None]) -> None:
        """The input has ended; what it raised is raised once all before it is given out."""
        raised = None if task.cancelled() else task.exception()
        arrived.append(raised or NoRequest.MORE)
        flow.wake()

    def work() -> tuple[list[tuple[K, Slot[Any]]], Exception | None]:
        """The next slots; or those before a bug, and the bug."""
        slots: list[tuple[K, Slot[object]]] = []

        def go_on() -> None:
            while not slots and not flow.closed and not flow.exhausted:
                slots.extend(flow.round())

        with one_at_a_time:
            outcome = attempt(go_on)
        return slots, outcome.swap().value_or(None)

    def end() -> None:
        """A thread cannot be cancelled: it ends after the running step."""
        with one_at_a_time:
            flow.close()

    one_at_a_time = threading.Lock()
    context = copy_context()
    context.run(CALLERS_LOOP.set, loop)
    fetching = asyncio.create_task(fetch())
    fetching.add_done_callback(fetched)
    try:
        while True:
            working = loop.run_in_executor(None, context.run, work)
            slots, error = await asyncio.shield(working)
            has_room.set()
            for keyed_slot in slots:
                yield keyed_slot
            if error is not None:
                raise error
            if not slots:
                return
    finally:
        fetching.cancel()
        flow.closed = True
        flow.wake()
        await asyncio.shield(loop.run_in_executor(None, end))  # it ends, also if this is cancelled


async def _asynchronous(items: Iterable[T] | AsyncIterable[T]) -> AsyncIterator[T]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item
