"""Any number of requests, a window of them at a time.

`imap` and `aimap` give the slots; `imap_keyed` and `aimap_keyed` give each with its request's key, so that nothing has to be zipped together again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from returns.result import Failure, Result, Success

from pipegen.core.border import Raised, guard
from pipegen.core.drive import Started, afinish, begin, finish
from pipegen.core.errors import InternalError
from pipegen.core.pipe import Pipe
from pipegen.core.slots import Batch, Slot, is_ok
from pipegen.drivers.arguments import Options, check_run, pair, pairs, require_iterable
from pipegen.drivers.batch import prepare_batch
from pipegen.engines.extras import MissingExtra
from pipegen.records.options import GenerationOptions
from pipegen.records.plain import Request
from pipegen.records.requests import GenerationRequest, ImagePolicy, RequestPolicy

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = ["aimap", "aimap_keyed", "imap", "imap_keyed"]

B = TypeVar("B")
K = TypeVar("K")
T = TypeVar("T")


def imap(
    route: Pipe[GenerationRequest, B],
    requests: Iterable[Request],
    options: Options | None = None,
    *,
    window: int = 64,
    ahead: int = 0,
    image_policy: ImagePolicy | None = None,
    policy: RequestPolicy | None = None,
    isolate_bugs: bool = False,
) -> Iterator[Slot[B]]:
    """Generate for any number of requests: slots come in order, and at most `window` requests are held at a time.

    With `ahead`, so many windows more are taken and prepared (images read and resized, prompts rendered and encoded) while the engine works on this
    one; as many more requests are held. Engine calls stay one at a time, and in order.

    With `isolate_bugs`, as a job wants it, a bug does not raise: a window in which one does is run again in halves, down to the request that raises it,
    which alone fails, with `InternalError`.

    >>> from pipegen.core.pipe import pure
    >>> endless = ({"prompt": str(n)} for n in range(10**9))
    >>> next(imap(pure("prompt", lambda request: request.prompt), endless, window=2))
    <Success: 0>
    """
    require_iterable(requests)
    for _, slot in imap_keyed(
        route,
        ((None, request) for request in requests),
        options,
        window=window,
        ahead=ahead,
        image_policy=image_policy,
        policy=policy,
        isolate_bugs=isolate_bugs,
    ):
        yield slot


def imap_keyed(
    route: Pipe[GenerationRequest, B],
    requests: Iterable[tuple[K, Request]],
    options: Options | None = None,
    *,
    window: int = 64,
    ahead: int = 0,
    image_policy: ImagePolicy | None = None,
    policy: RequestPolicy | None = None,
    isolate_bugs: bool = False,
) -> Iterator[tuple[K, Slot[B]]]:
    """As `imap`, for pairs of a key and a request: gives pairs of that key and the slot, failed ones too.

    A key is whatever the caller knows a request by: an id, a row of a table, an image and its folder, the request itself. No engine sees it, and keys
    may repeat.

    >>> from pipegen.core.pipe import pure
    >>> asked = [(("T-1", "hot"), {"prompt": "Hi"}), (("T-2", "hot"), {"messages": []})]
    >>> for key, slot in imap_keyed(pure("prompt", lambda request: request.prompt), asked):
    ...     print(key, slot.value_or("failed"))
    ('T-1', 'hot') Hi
    ('T-2', 'hot') failed
    """
    chosen = check_run(route, options, image_policy, policy)
    pairs(requests)
    _at_least("ahead", ahead, 0)
    source = map(pair, requests)
    chunks = iter(lambda: tuple(islice(source, _at_least("window", window, 1))), ())

    def answered(chunk: Sequence[tuple[K, Request]]) -> Batch[B]:
        return finish(_begun(route, chunk, chosen, image_policy, policy))

    def slots(chunk: Sequence[tuple[K, Request]], perform: Callable[[Sequence[tuple[K, Request]]], Batch[B]]) -> Batch[B]:
        return _isolated(chunk, perform, answered) if isolate_bugs else perform(chunk)

    if not ahead:
        for chunk in chunks:
            yield from _keyed(chunk, slots(chunk, answered))
        return
    from concurrent.futures import ThreadPoolExecutor

    waiting: deque[tuple[tuple[tuple[K, Request], ...], Future[Started]]] = deque()
    with ThreadPoolExecutor(1, thread_name_prefix="pipegen-ahead") as pool:
        try:
            while True:
                waiting.extend((chunk, pool.submit(_begun, route, chunk, chosen, image_policy, policy)) for chunk in islice(chunks, ahead + 1 - len(waiting)))
                if not waiting:
                    return
                chunk, prepared = waiting.popleft()
                yield from _keyed(chunk, slots(chunk, partial(_finished, prepared)))
        finally:
            for _, prepared in waiting:
                prepared.cancel()


def _begun(
    route: Pipe[GenerationRequest, Any],
    chunk: Sequence[tuple[Any, Request]],
    options: GenerationOptions | None,
    image_policy: ImagePolicy | None,
    policy: RequestPolicy | None,
) -> Started:
    return begin(route, prepare_batch([request for _, request in chunk], options, image_policy, policy))


def _finished(prepared: Future[Started], chunk: Sequence[Any]) -> Batch[Any]:
    return finish(prepared.result())


def _isolated(items: Sequence[T], perform: Callable[[Sequence[T]], Batch[B]], again: Callable[[Sequence[T]], Batch[B]]) -> Batch[B]:
    """What `perform` gives for the items. Where a bug raises, `again` is tried with each half, down to the item that raises it, which alone fails.

    A package that is missing is no bug of an item: that comes through.
    """

    def attempt() -> Result[Batch[B], MissingExtra]:
        try:
            return Success(perform(items))
        except MissingExtra as missing:
            return Failure(missing)

    def failed(raised: Raised) -> InternalError:
        return InternalError(f"pipegen has a bug: {raised.words}", incident=raised.incident)

    done = guard(attempt, failed, known=(Exception,) if len(items) > 1 else ())
    if is_ok(done):
        made = done.unwrap()
        if not is_ok(made):
            raise made.failure()
        return made.unwrap()
    if len(items) == 1:
        return (Failure(done.failure()),)
    half = len(items) // 2
    return _isolated(items[:half], again, again) + _isolated(items[half:], again, again)


def _keyed(chunk: Sequence[tuple[K, Request]], slots: Batch[Any]) -> Iterator[tuple[K, Slot[Any]]]:
    return zip([key for key, _ in chunk], slots, strict=True)


async def aimap(
    route: Pipe[GenerationRequest, B],
    requests: Iterable[Request] | AsyncIterable[Request],
    options: Options | None = None,
    *,
    window: int = 64,
    ahead: int = 0,
    image_policy: ImagePolicy | None = None,
    policy: RequestPolicy | None = None,
) -> AsyncIterator[Slot[B]]:
    """As `imap`, for asynchronous code; `requests` may be asynchronous too."""

    require_iterable(requests)

    async def keyed() -> AsyncIterator[tuple[None, Request]]:
        async for request in _asynchronous(requests):
            yield None, request

    async for _, slot in aimap_keyed(route, keyed(), options, window=window, ahead=ahead, image_policy=image_policy, policy=policy):
        yield slot


async def aimap_keyed(
    route: Pipe[GenerationRequest, B],
    requests: Iterable[tuple[K, Request]] | AsyncIterable[tuple[K, Request]],
    options: Options | None = None,
    *,
    window: int = 64,
    ahead: int = 0,
    image_policy: ImagePolicy | None = None,
    policy: RequestPolicy | None = None,
) -> AsyncIterator[tuple[K, Slot[B]]]:
    """As `imap_keyed`, for asynchronous code; `requests` may be asynchronous too."""
    import asyncio  # half of what `import pipegen` would cost

    chosen = check_run(route, options, image_policy, policy)
    pairs(requests)
    _at_least("ahead", ahead, 0)
    waiting: deque[tuple[list[tuple[K, Request]], asyncio.Task[Started]]] = deque()

    async def next_ones() -> Iterator[tuple[K, Slot[B]]]:
        chunk, prepared = waiting.popleft()
        return _keyed(chunk, await afinish(await prepared))

    try:
        async for chunk in _chunks(requests, window):
            waiting.append((chunk, asyncio.create_task(asyncio.to_thread(_begun, route, chunk, chosen, image_policy, policy))))
            if len(waiting) > ahead:
                for answer in await next_ones():
                    yield answer
        while waiting:
            for answer in await next_ones():
                yield answer
    finally:
        for _, prepared in waiting:
            prepared.cancel()


async def _chunks(items: Iterable[T] | AsyncIterable[T], window: int) -> AsyncIterator[list[T]]:
    chunk: list[T] = []
    async for item in _asynchronous(items):
        chunk.append(pair(item))
        if len(chunk) == _at_least("window", window, 1):
            yield chunk
            chunk = []
    if chunk:
        yield chunk


async def _asynchronous(items: Iterable[T] | AsyncIterable[T]) -> AsyncIterator[T]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item


def _at_least(name: str, number: int, least: int) -> int:
    if type(number) is not int or number < least:
        raise ValueError(f"{name} takes a whole number of at least {least}, not {number!r}")
    return number
