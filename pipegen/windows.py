"""Any number of requests, a window of them at a time.

`imap` and `aimap` give the slots; `imap_keyed` and `aimap_keyed` give each with its request's key, so that nothing has to be zipped together again.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from itertools import islice
from typing import TypeVar

from pipegen.drive import Request, arun, run
from pipegen.options import GenerationOptions
from pipegen.pipe import Pipe
from pipegen.requests import GenerationRequest, ImagePolicy
from pipegen.slots import Slot

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
    images: ImagePolicy | None = None,
) -> Iterator[Slot[B]]:
    """Generate for any number of requests: slots come in order, and at most `window` requests are held at a time.

    >>> from pipegen.pipe import pure
    >>> endless = ({"prompt": str(n)} for n in range(10**9))
    >>> next(imap(pure("prompt", lambda request: request.prompt), endless, window=2))
    <Success: 0>
    """
    for _, slot in imap_keyed(route, ((None, request) for request in requests), options, window=window, images=images):
        yield slot


def imap_keyed(
    route: Pipe[GenerationRequest, B],
    requests: Iterable[tuple[K, Request]],
    options: GenerationOptions | None = None,
    *,
    window: int = 64,
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
    source = iter(requests)
    while chunk := tuple(islice(source, _positive(window))):
        slots = run(route, [request for _, request in chunk], options, images=images)
        yield from zip([key for key, _ in chunk], slots, strict=True)


async def aimap(
    route: Pipe[GenerationRequest, B],
    requests: Iterable[Request] | AsyncIterable[Request],
    options: GenerationOptions | None = None,
    *,
    window: int = 64,
    images: ImagePolicy | None = None,
) -> AsyncIterator[Slot[B]]:
    """As `imap`, for asynchronous code; `requests` may be asynchronous too."""

    async def keyed() -> AsyncIterator[tuple[None, Request]]:
        async for request in _asynchronous(requests):
            yield None, request

    async for _, slot in aimap_keyed(route, keyed(), options, window=window, images=images):
        yield slot


async def aimap_keyed(
    route: Pipe[GenerationRequest, B],
    requests: Iterable[tuple[K, Request]] | AsyncIterable[tuple[K, Request]],
    options: GenerationOptions | None = None,
    *,
    window: int = 64,
    images: ImagePolicy | None = None,
) -> AsyncIterator[tuple[K, Slot[B]]]:
    """As `imap_keyed`, for asynchronous code; `requests` may be asynchronous too."""
    chunk: list[tuple[K, Request]] = []

    async def answered() -> list[tuple[K, Slot[B]]]:
        slots = await arun(route, [request for _, request in chunk], options, images=images)
        return list(zip([key for key, _ in chunk], slots, strict=True))

    async for pair in _asynchronous(requests):
        chunk.append(pair)
        if len(chunk) == _positive(window):
            for answer in await answered():
                yield answer
            chunk = []
    for answer in await answered():
        yield answer


async def _asynchronous(items: Iterable[T] | AsyncIterable[T]) -> AsyncIterator[T]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item


def _positive(window: int) -> int:
    if window < 1:
        raise ValueError(f"window takes a whole number of at least 1, not {window!r}")
    return window
