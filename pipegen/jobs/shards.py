"""Shards: the requests of a job, split among processes that do not talk to each other.

A request belongs to a shard by a digest of its content: messages, prompt, ids, continuation, tools,
and a sample of the bytes of each image. Its place in the input, its id and its options do not
count. A request that continues a conversation counts by what that began with. So every process
finds the same split, and rows that are inserted or removed move no other row. Equal requests are in
one shard, where a job counts them as in the whole input. An image at an http address counts by its
address.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TypeVar

from pipegen.core.functional import parallel, partition_all
from pipegen.core.slots import Slot, live
from pipegen.drivers.arguments import check_settings, pair, pairs, record_of, require_iterable
from pipegen.jobs.row_keys import content_of
from pipegen.media.source import sample_of
from pipegen.records.fields import unchecked_replace
from pipegen.records.parse_request import Request
from pipegen.records.requests import (
    GenerationRequest,
    ImagePolicy,
    TextGenerationRequest,
    VlmGenerationRequest,
)

K = TypeVar("K")
_TOGETHER = 32
"""Requests whose images are read side by side."""


def shard(
    requests: Iterable[Request], i: int, n: int, *, image_policy: ImagePolicy | None = None
) -> Iterator[Request]:
    """The requests that belong to shard `i` of `n`, in their order: shards are 1 to `n`, and each
    request belongs to one of them.

    A request that is not valid belongs to shard 1. Raises `ValueError` where there is no such
    shard.

    >>> requests = [{"prompt": f"Count to {number}."} for number in range(6)]
    >>> [[request["prompt"][9:-1] for request in shard(requests, i, 2)] for i in (1, 2)]
    [['0', '4', '5'], ['1', '2', '3']]
    """
    require_iterable(requests)
    return (
        request
        for _, request in shard_keyed(
            ((None, request) for request in requests), i, n, image_policy=image_policy
        )
    )


def shard_keyed(
    requests: Iterable[tuple[K, Request]],
    i: int,
    n: int,
    *,
    image_policy: ImagePolicy | None = None,
) -> Iterator[tuple[K, Request]]:
    """As `shard`, for pairs of a key and a request, as `job_keyed` takes them."""
    pairs(requests)
    images = check_settings(None, image_policy).images
    if type(i) is not int or type(n) is not int or not 1 <= i <= n:
        raise ValueError(
            f"there is no shard {i!r:.40} of {n!r:.40}: shards are whole numbers from 1 to their"
            " number"
        )
    return _kept(requests, i, n, images)


def _kept(
    requests: Iterable[tuple[K, Request]], i: int, n: int, images: ImagePolicy
) -> Iterator[tuple[K, Request]]:
    for chunk in partition_all(_TOGETHER, map(pair, requests)):
        numbers = numbers_of([record_of(request) for _, request in chunk], images)
        yield from (
            item for item, number in zip(chunk, numbers, strict=True) if in_part(number, (i, n))
        )


def in_part(number: int, part: tuple[int, int]) -> bool:
    """Whether a request with this number belongs to a part: a shard, and how many there are."""
    return number % part[1] + 1 == part[0]


def numbers_of(requests: Sequence[Slot[GenerationRequest]], images: ImagePolicy) -> list[int]:
    """For each request, the number by which it belongs to a shard; 0 for one that is not valid."""
    requests = [slot.map(_opening) for slot in requests]
    sources = [source for request in live(requests) for source in request.sources]
    samples = iter(parallel(lambda source: sample_of(source, images), sources) if sources else ())
    return [slot.map(partial(_number, samples)).value_or(0) for slot in requests]


def _opening(request: GenerationRequest) -> GenerationRequest:
    """What the conversation of a request began with: all of it is in one shard."""
    continues = request.continues
    if continues is not None and continues.first is not None:
        messages = (request.messages or ())[: continues.first]
        kind = (
            VlmGenerationRequest
            if any(message.sources for message in messages)
            else TextGenerationRequest
        )
        return kind(messages=messages, tools=request.tools)
    return unchecked_replace(request, turns=()) if request.turns else request


def _number(samples: Iterator[bytes], request: GenerationRequest) -> int:
    """The number of a request; the samples of its images are the next ones."""
    from hashlib import blake2b  # importing pipegen loads no hashlib

    digest = blake2b(content_of(request), digest_size=8)
    for sample in islice(samples, len(request.sources)):
        digest.update(blake2b(sample, digest_size=8).digest())
    return int.from_bytes(digest.digest(), "big")
