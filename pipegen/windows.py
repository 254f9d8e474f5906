"""Any number of requests, a window of them at a time.

`imap` and `aimap` give the slots; `imap_keyed` and `aimap_keyed` give each with its request's key, so that nothing has to be zipped together again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

from pipegen.arguments import check_run, pair, pairs, several
from pipegen.drive import Begun, Request, admit, afinish, begin, finish
from pipegen.options import GenerationOptions
from pipegen.pipe import Pipe
from pipegen.requests import GenerationRequest, ImagePolicy
from pipegen.slots import Batch, Slot

__all__ = ["aimap", "aimap_keyed", "imap", "imap_keyed"]

B = TypeVar("B")
K = TypeVar("K")
T = TypeVar("T")


def imap(
    route: Pipe[GenerationRequest, B],
    requests: Iterable[Request],
    options: GenerationOptions | None = None,
    *,
    window: int = 64,
    ahead: int = 0,
    images: ImagePolicy | None = None,
) -> Iterator[Slot[B]]:
    """Generate for any number of requests: slots come in order, and at most `window` requests are held at a time.

    With `ahead`, so many windows more are taken and prepared (pictures read and resized, prompts rendered and encoded) while the engine works on this
    one; as many more requests are held. Engine calls stay one at a time, and in order.

    >>> from pipegen.pipe import pure
    >>> endless = ({"prompt": str(n)} for n in range(10**9))
    >>> next(imap(pure("prompt", lambda request: request.prompt), endless, window=2))
    <Success: 0>
    """
    several(requests)
    for _, slot in imap_keyed(route, ((None, request) for request in requests), options, window=window, ahead=ahead, images=images):
        yield slot


def imap_keyed(
    route: Pipe[GenerationRequest, B],
    requests: Iterable[tuple[K, Request]],
    options: GenerationOptions | None = None,
    *,
    window: int = 64,
    ahead: int = 0,
    images: ImagePolicy | None = None,
) -> Iterator[tuple[K, Slot[B]]]:
    """As `imap`, for pairs of a key and a request: gives pairs of that key and the slot, failed ones too.

    A key is whatever the caller knows a request by: an id, a row of a table, a picture and its folder, the request itself. No engine sees it, and keys
    may repeat.

    >>> from pipegen.pipe import pure
    >>> asked = [(("T-1", "hot"), {"prompt": "Hi"}), (("T-2", "hot"), {"messages": []})]
    >>> for key, slot in imap_keyed(pure("prompt", lambda request: request.prompt), asked):
    ...     print(key, slot.value_or("failed"))
    ('T-1', 'hot') Hi
    ('T-2', 'hot') failed
    """
    check_run(route, options, images)
    pairs(requests)
    _at_least("ahead", ahead, 0)
    source = map(pair, requests)
    chunks = iter(lambda: tuple(islice(source, _at_least("window", window, 1))), ())
    if not ahead:
        for chunk in chunks:
            yield from _keyed(chunk, finish(_begun(route, chunk, options, images)))
        return
    from concurrent.futures import Future, ThreadPoolExecutor

    waiting: deque[tuple[tuple[tuple[K, Request], ...], Future[Begun]]] = deque()
    with ThreadPoolExecutor(1, thread_name_prefix="pipegen-ahead") as pool:
        try:
            while True:
                waiting.extend((chunk, pool.submit(_begun, route, chunk, options, images)) for chunk in islice(chunks, ahead + 1 - len(waiting)))
                if not waiting:
                    return
                chunk, prepared = waiting.popleft()
                yield from _keyed(chunk, finish(prepared.result()))
        finally:
            for _, prepared in waiting:
                prepared.cancel()


def _begun(route: Pipe[GenerationRequest, Any], chunk: Sequence[tuple[Any, Request]], options: GenerationOptions | None, images: ImagePolicy | None) -> Begun:
    return begin(route, admit([request for _, request in chunk], options, images))


def _keyed(chunk: Sequence[tuple[K, Request]], slots: Batch[Any]) -> Iterator[tuple[K, Slot[Any]]]:
    return zip([key for key, _ in chunk], slots, strict=True)


async def aimap(
    route: Pipe[GenerationRequest, B],
    requests: Iterable[Request] | AsyncIterable[Request],
    options: GenerationOptions | None = None,
    *,
    window: int = 64,
    ahead: int = 0,
    images: ImagePolicy | None = None,
) -> AsyncIterator[Slot[B]]:
    """As `imap`, for asynchronous code; `requests` may be asynchronous too."""

    several(requests)

    async def keyed() -> AsyncIterator[tuple[None, Request]]:
        async for request in _asynchronous(requests):
            yield None, request

    async for _, slot in aimap_keyed(route, keyed(), options, window=window, ahead=ahead, images=images):
        yield slot


async def aimap_keyed(
    route: Pipe[GenerationRequest, B],
    requests: Iterable[tuple[K, Request]] | AsyncIterable[tuple[K, Request]],
    options: GenerationOptions | None = None,
    *,
    window: int = 64,
    ahead: int = 0,
    images: ImagePolicy | None = None,
) -> AsyncIterator[tuple[K, Slot[B]]]:
    """As `imap_keyed`, for asynchronous code; `requests` may be asynchronous too."""
    import asyncio  # half of what `import pipegen` would cost

    check_run(route, options, images)
    pairs(requests)
    _at_least("ahead", ahead, 0)
    waiting: deque[tuple[list[tuple[K, Request]], asyncio.Task[Begun]]] = deque()

    async def next_ones() -> Iterator[tuple[K, Slot[B]]]:
        chunk, prepared = waiting.popleft()
        return _keyed(chunk, await afinish(await prepared))

    try:
        async for chunk in _chunks(requests, window):
            waiting.append((chunk, asyncio.create_task(asyncio.to_thread(_begun, route, chunk, options, images))))
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
