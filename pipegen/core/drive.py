"""Drivers: the only code that performs calls. `run` and `arun` take a batch; `pipegen.drivers.mapping` goes on from there to any number of requests."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

from returns.result import Failure, Result, Success

from pipegen.core.border import Raised, guard_slot
from pipegen.core.errors import CallFailed, ContractError, InvalidRequest
from pipegen.core.parallel import parallel
from pipegen.core.pipe import Call, Pipe, Steps, counted
from pipegen.core.slots import Batch, Slot, is_ok
from pipegen.drivers.arguments import Options, check_run, check_settings, several, slot_of_request
from pipegen.media.source import load_sources
from pipegen.records.allowed import allowed
from pipegen.records.fields import InvalidField, altered, printed
from pipegen.records.options import GenerationOptions, merge, options_from
from pipegen.records.requests import FIELDS, GenerationRequest, ImagePolicy, RequestPolicy, TextGenerationRequest, VlmGenerationRequest, field_hint

__all__ = ["Request", "admit", "arun", "request_from", "run"]

B = TypeVar("B")

Request: TypeAlias = GenerationRequest | Mapping[str, Any] | Slot[GenerationRequest]
"""What the drivers take: a record, plain data of the same shape (checked in its own slot), or a slot, which may have failed already."""


def request_from(values: Mapping[str, Any], place: str = "request") -> Slot[GenerationRequest]:
    """A request from plain data: `{"id", "messages" | "prompt" | "prompt_token_ids", "images", "tools", "options"}`.

    Whatever is wrong with it becomes `InvalidRequest`, which names the place.

    >>> request_from({"messages": []}).failure().message
    'request: messages takes at least one message, not []'
    >>> request_from({"prompt": "a", "options": {"temprature": 1}}).failure().message
    "request: options: there is no option 'temprature'; did you mean 'temperature'?"
    """
    return guard_slot(lambda: _request_from(values, place), lambda raised: _unreadable(place, raised))


def _unreadable(place: str, raised: Raised) -> InvalidRequest:
    return InvalidRequest(f"{place}: it cannot be read: {raised.words}", incident=raised.incident)


def _request_from(values: Mapping[str, Any], place: str) -> Slot[GenerationRequest]:
    if not isinstance(values, Mapping):
        return Failure(InvalidRequest(f"{place}: a mapping or a request is wanted, not {printed(values)}"))
    if not _FIELDS.keys() >= values.keys():
        unknown = next(name for name in values if name not in _FIELDS)
        return Failure(InvalidRequest(f"{place}: there is no field {printed(unknown)}{field_hint(str(unknown))}"))
    said = {name: value for name, value in values.items() if value is not None}
    try:
        if isinstance(said.get("options"), Mapping):
            said["options"] = options_from(said["options"])
        none = isinstance(said.get("images", ()), (list, tuple)) and not said.get("images")
        pictures = not none or _holds_pictures(said.get("messages"))
        kind = VlmGenerationRequest if pictures else TextGenerationRequest
        if not pictures:
            said.pop("images", None)
        return Success(kind(**said))
    except InvalidField as refusal:
        words = str(refusal).removeprefix("TextGenerationRequest.").removeprefix("VlmGenerationRequest.")
        return Failure(InvalidRequest(f"{place}: {words}"))


_FIELDS = dict.fromkeys(FIELDS)


def _holds_pictures(messages: Any) -> bool:
    if not isinstance(messages, (list, tuple)):
        return False
    contents = [message.get("content") for message in messages if isinstance(message, Mapping)]
    parts = [part for content in contents if isinstance(content, (list, tuple)) for part in content]
    return any(isinstance(part, Mapping) and part.get("type") in ("image", "image_url") for part in parts)


def admit(
    requests: Iterable[Request], options: Options | None = None, images: ImagePolicy | None = None, policy: RequestPolicy | None = None
) -> Batch[GenerationRequest]:
    """Make the batch that a route starts from: records made of plain data, the run's options merged in, what they ask for allowed, pictures read.

    A request's own options win over those of the run. Raises `TypeError` for arguments of other kinds.
    """
    several(requests)
    chosen = check_settings(options, images, policy)
    allows, reads = policy or RequestPolicy(), images or ImagePolicy()

    def admitted(request: Request) -> Slot[GenerationRequest]:
        return guard_slot(lambda: _admit(request, chosen, allows), lambda raised: _unreadable("request", raised))

    def loaded(place: int) -> Slot[GenerationRequest]:
        return guard_slot(lambda: load_sources(batch[place].unwrap(), reads), lambda raised: _unreadable("request: its pictures", raised))

    batch = [admitted(request) for request in requests]
    sourced = [place for place, slot in enumerate(batch) if is_ok(slot) and slot.unwrap().sources]
    for place, slot in zip(sourced, parallel(loaded, sourced), strict=True):
        batch[place] = slot
    return tuple(batch)


def _admit(request: Request, options: GenerationOptions | None, policy: RequestPolicy) -> Slot[GenerationRequest]:
    given = Success(request) if isinstance(request, GenerationRequest) else request
    made: Slot[GenerationRequest] = slot_of_request(given) if isinstance(given, Result) else request_from(given)
    own = made.unwrap().options if is_ok(made) else None
    return made.bind(lambda record: _with_options(record, options)).bind(lambda record: allowed(record, policy, own))


def _with_options(request: GenerationRequest, options: GenerationOptions | None) -> Slot[GenerationRequest]:
    if options is None:
        return Success(request)
    try:
        return Success(altered(request, options=_merged(request.options, options)))
    except InvalidField as refusal:
        return Failure(InvalidRequest(f"options of the request and of the run contradict each other: {refusal}"))


_merged = functools.lru_cache(maxsize=1024)(merge)  # the requests of a run have few distinct options


def answers_of(wanted: Call, answers: Sequence[Slot[Any]]) -> Sequence[Slot[Any]]:
    """The engine's answers, checked: one for each input. Raises `ContractError` otherwise."""
    if len(answers) != len(wanted.inputs):
        raise ContractError(f"engine {wanted.backend.name} returned {len(answers)} outputs for {len(wanted.inputs)} inputs")
    return answers


def failed(wanted: Call, failure: CallFailed) -> Sequence[Slot[Any]]:
    """The answers of a call that failed as a whole: the same error in every slot."""
    return [Failure(failure.error)] * len(wanted.inputs)


class Returned(NamedTuple):
    """A pipe at work has returned its batch."""

    batch: Batch[Any]


def advance(at_work: Steps[Any], answers: Sequence[Slot[Any]] | None = None) -> Call | Returned:
    """Let a pipe at work go on to its next call, or to its end."""
    try:
        return next(at_work) if answers is None else at_work.send(answers)
    except StopIteration as done:
        return Returned(done.value)


class Begun(NamedTuple):
    """A pipe at work that is prepared up to its first call, or done."""

    at_work: Steps[Any]
    step: Call | Returned


def begin(pipe: Pipe[Any, Any], batch: Batch[Any]) -> Begun:
    """Let a pipe work until it wants its first call; nothing is called yet, so this may be done ahead of time and in another thread."""
    at_work = counted(pipe, batch)
    return Begun(at_work, advance(at_work))


def finish(begun: Begun) -> Batch[Any]:
    """Perform the calls of a pipe at work, one after the other."""
    at_work, step = begun
    try:
        while isinstance(step, Call):
            try:
                answers = answers_of(step, step.backend.generate(step.inputs))
            except CallFailed as failure:
                answers = failed(step, failure)
            step = advance(at_work, answers)
        return step.batch
    finally:
        at_work.close()


async def afinish(begun: Begun) -> Batch[Any]:
    """As `finish`; a backend that is not asynchronous itself works in a thread."""
    import asyncio  # half of what `import pipegen` would cost

    at_work, step = begun
    try:
        while isinstance(step, Call):
            agenerate = getattr(step.backend, "agenerate", None)
            try:
                made = await (agenerate(step.inputs) if agenerate is not None else asyncio.to_thread(step.backend.generate, step.inputs))
                answers = answers_of(step, made)
            except CallFailed as failure:
                answers = failed(step, failure)
            step = advance(at_work, answers)
        return step.batch
    finally:
        at_work.close()


def drive(pipe: Pipe[Any, B], batch: Batch[Any]) -> Batch[B]:
    """Run a pipe over slots, performing its calls one after the other."""
    return finish(begin(pipe, batch))


async def adrive(pipe: Pipe[Any, B], batch: Batch[Any]) -> Batch[B]:
    """As `drive`; a backend that is not asynchronous itself works in a thread."""
    return await afinish(begin(pipe, batch))


def run(
    route: Pipe[GenerationRequest, B],
    requests: Iterable[Request],
    options: Options | None = None,
    *,
    images: ImagePolicy | None = None,
    policy: RequestPolicy | None = None,
) -> Batch[B]:
    """Generate for a batch: N requests in, N slots out, in order, with one engine call for all live ones.

    `images` says which picture sources may be read, `policy` what a request may ask for. An empty batch calls no engine and loads nothing.

    >>> from pipegen.core.pipe import pure
    >>> run(pure("prompt", lambda request: request.prompt), [{"prompt": "Hi"}])
    (<Success: Hi>,)
    """
    chosen = check_run(route, options, images, policy)
    return drive(route, admit(requests, chosen, images, policy))


async def arun(
    route: Pipe[GenerationRequest, B],
    requests: Iterable[Request],
    options: Options | None = None,
    *,
    images: ImagePolicy | None = None,
    policy: RequestPolicy | None = None,
) -> Batch[B]:
    """As `run`, for asynchronous code; the same slots."""
    import asyncio

    chosen = check_run(route, options, images, policy)
    several(requests)
    return await adrive(route, await asyncio.to_thread(admit, tuple(requests), chosen, images, policy))
