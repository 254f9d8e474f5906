"""A batch through a pipe: `run` and `arun` take N requests and give N slots;
`pipegen.drivers.mapping` goes on to any number.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, TypeVar

from returns.result import Failure, Result, Success

from pipegen.core.border import guard_slot
from pipegen.core.drive import adrive, drive
from pipegen.core.errors import InvalidRequest
from pipegen.core.parallel import parallel
from pipegen.core.pipe import Pipe
from pipegen.core.slots import Batch, Slot, is_ok
from pipegen.drivers.arguments import (
    Options,
    check_run,
    check_settings,
    require_iterable,
    slot_of_request,
)
from pipegen.drivers.naming import Naming
from pipegen.media.source import load_sources
from pipegen.records.allowed import allowed
from pipegen.records.fields import InvalidField, altered
from pipegen.records.options import GenerationOptions, merge
from pipegen.records.plain import Request, request_from, unreadable
from pipegen.records.requests import GenerationRequest, ImagePolicy, RequestPolicy

__all__ = ["admitted", "arun", "loaded", "merged_into", "prepare_batch", "record_of", "run"]

B = TypeVar("B")


def prepare_batch(
    requests: Iterable[Request],
    options: Options | None = None,
    image_policy: ImagePolicy | None = None,
    policy: RequestPolicy | None = None,
) -> Batch[GenerationRequest]:
    """Make the batch that a route starts from: records made of plain data, the run's options merged
    in, what they ask for allowed, images read.

    A request's own options win over those of the run. Raises `TypeError` for arguments of other
    kinds.
    """
    require_iterable(requests)
    chosen = check_settings(options, image_policy, policy)
    allows, reads = policy or RequestPolicy(), image_policy or ImagePolicy()

    batch = [admitted(request, chosen, allows) for request in requests]
    sourced = [place for place, slot in enumerate(batch) if is_ok(slot) and slot.unwrap().sources]
    for place, slot in zip(
        sourced, parallel(lambda place: loaded(batch[place], reads), sourced), strict=True
    ):
        batch[place] = slot
    return tuple(batch)


def admitted(
    request: Request, options: GenerationOptions | None, policy: RequestPolicy
) -> Slot[GenerationRequest]:
    """The record of a request, with the run's options merged in and what it asks for allowed; or
    why it is none. Reads no image.
    """
    return guard_slot(
        lambda: _admit(request, options, policy), lambda raised: unreadable("request", raised)
    )


def loaded(asked: Slot[GenerationRequest], policy: ImagePolicy) -> Slot[GenerationRequest]:
    """The request with its images read."""
    return guard_slot(
        lambda: asked.bind(lambda request: load_sources(request, policy)),
        lambda raised: unreadable("request: its images", raised),
    )


def _admit(
    request: Request, options: GenerationOptions | None, policy: RequestPolicy
) -> Slot[GenerationRequest]:
    made = record_of(request)
    if not is_ok(made):
        return made
    merged = merged_into(made.unwrap(), options)
    return allowed(merged.unwrap(), policy, made.unwrap().options) if is_ok(merged) else merged


def record_of(request: Any) -> Slot[GenerationRequest]:
    """The record of a request in any form, or why it is none."""
    if isinstance(request, Result):
        return slot_of_request(request)
    return Success(request) if isinstance(request, GenerationRequest) else request_from(request)


def merged_into(
    request: GenerationRequest, options: GenerationOptions | None
) -> Slot[GenerationRequest]:
    """The request with the options for what its own leave open; `InvalidRequest` where the two
    contradict each other.
    """
    if options is None:
        return Success(request)
    try:
        return Success(altered(request, options=_merged(request.options, options)))
    except InvalidField as refusal:
        return Failure(
            InvalidRequest(
                f"options of the request and of the run contradict each other: {refusal}"
            )
        )


# the requests of a run have few distinct options
_merged = functools.lru_cache(maxsize=1024)(merge)


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

    `image_policy` says which image sources may be read, `policy` what a request may ask for. An
    empty batch calls no engine and loads nothing.

    >>> from pipegen.core.pipe import pure
    >>> run(pure("prompt", lambda request: request.prompt), [{"prompt": "Hi"}])
    (<Success: Hi>,)
    """
    chosen = check_run(route, options, image_policy, policy)
    batch = prepare_batch(requests, chosen, image_policy, policy)
    with Naming(batch):
        return drive(route, batch)


async def arun(
    route: Pipe[GenerationRequest, B],
    requests: Iterable[Request],
    options: Options | None = None,
    *,
    image_policy: ImagePolicy | None = None,
    policy: RequestPolicy | None = None,
) -> Batch[B]:
    """As `run`, for asynchronous code; the same slots."""
    import asyncio

    chosen = check_run(route, options, image_policy, policy)
    require_iterable(requests)
    batch = await asyncio.to_thread(prepare_batch, tuple(requests), chosen, image_policy, policy)
    with Naming(batch):
        return await adrive(route, batch)
