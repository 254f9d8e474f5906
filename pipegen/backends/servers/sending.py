"""From a row to its completions: where wire functions and the transport meet, for whole answers
(`whole`) and for streams (`pieces`).

**States.** A row is *asked* (its `ServerRequest` is made of it and of what is known of the server),
*sent*, *read*, or *ended* with its answer or error.

- asked: the server's facts are looked up where they are stale, then the wire makes the request.
  Bodies with images are made in a thread, few at a time, and are dropped as soon as they are sent.
- sent to asked again: a refusal shows that the server lacks something (`Wire.lacking`). It is
  remembered for a while, and the row is asked another way.
- sent to sent again: what the transport may send again; a stream only while it has brought no
  piece.
- read: the wire's functions read the answer, or one event of a stream. What a server answers is
  foreign data: whatever reading it raises fails its own row, with an incident in the log.
- ended: by the row's own rule (`take` or `ended` says so), by the answer's end, or by an error.
  Where the server still works on the row and can be asked to stop (`Wire.abort`), it is asked.
  After its row has ended, a stream has `LAST_WORDS` seconds for the counts and `[DONE]`.

**Invariants.** One row's failure is its own: `each` runs every row. Cancelled, it cancels the rows
and waits for them, so nothing is left running.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import secrets
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar, cast

from returns.methods import unwrap_or_failure
from returns.result import Failure, Success

from pipegen.backends.http.access import Access
from pipegen.backends.http.client import Upload, most_bytes, most_bytes_of_stream
from pipegen.backends.http.gate import Late
from pipegen.backends.http.transport import (
    AttemptFailed,
    HttpStatusError,
    RowCall,
    Transport,
    body_of,
)
from pipegen.backends.servers.extra_body import with_known_fields
from pipegen.backends.servers.facts import LOOK_UP_SECONDS, Directory
from pipegen.backends.servers.finishes import error_within
from pipegen.backends.servers.reading import json_of, malformed
from pipegen.backends.servers.server_errors import AGAIN
from pipegen.backends.servers.wire import (
    Completion,
    Facts,
    LastCallCache,
    ServerRequest,
    Wire,
    WireReply,
    WireRequest,
)
from pipegen.core.errors import (
    BackendFailed,
    GenerationError,
    InvalidRequest,
    MalformedResponse,
    Timeout,
)
from pipegen.core.foreign_calls import Raised, guard, guard_result, report
from pipegen.core.slots import Slot, is_ok
from pipegen.engines.protocol import PromptWork
from pipegen.engines.settings import ServerSettings
from pipegen.records.frozen import NOTHING
from pipegen.records.secret import revealed

A = TypeVar("A")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
Make: TypeAlias = Callable[[Facts], Slot[ServerRequest]]
"""The request of a row, given what is known of the server; `Sender.completed` adds the rest."""
LAST_WORDS = 5.0
"""Seconds that a stream has for its last words (the counts, `[DONE]`) after its row has ended."""


IMAGE = 1000
"""Tokens that an image counts with on a server that renders, before its answer says them."""


class RowToSend(Protocol[R_co]):
    """A row that is asked for whole."""

    @property
    def heavy(self) -> bool:
        """Whether its body is made in a thread, and held only while it is sent: it holds images."""
        ...

    def ask(self, facts: Facts) -> Slot[ServerRequest]:
        """As `Make`."""
        ...

    def read(self, completions: tuple[Completion, ...]) -> Slot[R_co]:
        """The row's answer."""
        ...


class _Sendable(NamedTuple):
    """A row as it is sent."""

    facts: Facts
    request: ServerRequest
    """Without what was only of use for the request."""
    wire_request: WireRequest
    body: bytes | Upload | None
    most: int
    """The bytes that its answer may have."""
    tokens: int
    """Those that it counts with, where a route to this server has limits."""


class Sender:
    """Asks one server, by one engine's wire.

    `model` is the name by which the server is asked for it, unless the settings or the server
    itself say another.
    """

    def __init__(self, wire: Wire, access: Access, settings: ServerSettings, model: str) -> None:
        self.wire, self.access, self.settings, self.named = wire, access, settings, model
        self.transport = Transport(access, settings)
        paths = (
            wire.paths if any(value is not None for value in settings.extra_body.values()) else ()
        )
        self.directory = Directory(self.transport, (wire.about, wire.started), paths)
        self.model = LastCallCache(self._model_by)
        self.prompt_work = PromptWork()

    @functools.cached_property
    def extra_body(self) -> dict[str, object]:
        """What is merged into each body, secrets revealed; nobody may change it."""
        return cast("dict[str, Any]", revealed(self.settings.extra_body))

    async def facts(self, deadline: float) -> Facts:
        """What the server offers, looked up where that is stale. Raises `AttemptFailed` where it
        takes too long.
        """
        try:
            with (await self.transport.here()).deadlines.by(deadline):
                return await self.directory.facts()
        except Late as late:
            raise AttemptFailed(
                self.transport.late("for what the server offers"), again=False
            ) from late

    async def looked_up(self) -> Facts:
        """What the server offers; nothing where it does not say in time."""
        try:
            return await self.facts(asyncio.get_running_loop().time() + LOOK_UP_SECONDS)
        except AttemptFailed:
            return Facts()

    def completed(self, request: ServerRequest, model: str | None, rid: str = "") -> ServerRequest:
        """The request with what the sender knows: the model's name at the server, the attempt's name, and
        what is merged into its body.
        """
        return request._replace(model=model, rid=rid, extra_body=self.extra_body)

    def request(self, request: ServerRequest, facts: Facts) -> Slot[WireRequest]:
        """The request as it is sent. A field of `extra_body` that the server lacks is refused."""
        wire_request = self.wire.to_wire(request, facts)
        if not request.extra_body:
            return wire_request
        return wire_request.bind(functools.partial(with_known_fields, request.extra_body, facts))

    def _model_by(self, facts: Facts) -> Slot[str | None]:
        """The name that the server knows the model by; None where it could not be found out, which
        leaves it to the server.
        """
        if self.settings.served_model_name is not None:
            return Success(self.settings.served_model_name)
        served = tuple(facts.models)
        if self.named in served or not served:
            return Success(self.named if self.named in served else None)
        own = [name for name in served if name not in facts.adapters]
        if len(own) == 1:
            return Success(own[0])
        words = (
            f"{self.access.root} serves {', '.join(served)[:500]}, and none of them is"
            f" {self.named!r}"
        )
        return Failure(InvalidRequest(words, hint="set served_model_name"))

    async def whole(self, row_to_send: RowToSend[R], call: RowCall) -> Slot[R]:
        """The answer of one row; sent again where that is safe.

        A call keeps thousands of these waiting, and the garbage collector looks at all that each
        holds: so few coroutines, no closures, no timers.
        """
        try:
            try:
                return await self._read_once(row_to_send, call)
            except AttemptFailed as first:
                return await self.transport.retry(
                    first, functools.partial(self._read_once, row_to_send, call), call
                )
        except AttemptFailed as trouble:
            return Failure(trouble.error)

    async def _read_once(self, row_to_send: RowToSend[R], call: RowCall) -> Slot[R]:
        """One attempt at a whole answer. Raises `AttemptFailed`."""
        while True:
            fresh_facts, heavy = self.directory.fresh, row_to_send.heavy
            facts, request, wire_request, body, most, call.tokens = (
                await self._ready(row_to_send.ask, heavy, call)
                if heavy or fresh_facts is None
                else self._made(row_to_send.ask, fresh_facts)
            )
            try:
                reply = await self.transport.once(wire_request, call, body=body, most=most)
                value = json_of(reply.body)
                if (within := error_within(value.value_or(None))) is not None:
                    raise HttpStatusError(within)
            except (asyncio.CancelledError, HttpStatusError, AttemptFailed) as ended:
                await self._ended(ended, facts, request, wire_request)
            else:
                answer = self._read(row_to_send, request, value, call)
                _value(answer)
                return answer
            finally:
                if isinstance(body, Upload):
                    body.let_go()

    def _read(
        self, row_to_send: RowToSend[R], request: ServerRequest, value: Slot[object], call: RowCall
    ) -> Slot[R]:
        def read(completions: tuple[Completion, ...]) -> Slot[R]:
            for completion in completions:
                self._spent(call, request, completion.usage, len(completion.token_ids or ()))
            return row_to_send.read(completions)

        return guard_result(
            lambda: value.bind(lambda answer: self.wire.from_wire(answer, request)).bind(read),
            self._unreadable,
        )

    def _spent(
        self, call: RowCall, request: ServerRequest, usage: Mapping[str, int], count: int
    ) -> None:
        """Count the tokens that a request took, where they are known, in the place of those that it
        might have taken.
        """
        prompt = usage.get("prompt_tokens") or request.prompt_tokens or len(request.token_ids)
        answer = usage.get("completion_tokens", count)
        self.prompt_work.count(prompt, cached=usage.get("cached_tokens", 0))
        if call.turn is not None and prompt and answer:
            self.transport.rates.spent(call.turn, prompt + answer, answer)

    def _unreadable(self, raised: Raised) -> MalformedResponse:
        return MalformedResponse(
            f"{self.access.root}: its answer cannot be read: {self.access.scrub(raised.words)}",
            incident=raised.incident,
        )

    async def pieces(
        self,
        make: Make,
        take: Callable[[Completion], bool],
        call: RowCall,
        *,
        heavy: bool = False,
        ended: Callable[[], bool] = lambda: False,
        bounded: bool = False,
    ) -> GenerationError | None:
        """Show `take` the pieces of one row as they come, until it says that the row is done; the
        error where there are no more before `ended` says so.

        After that the stream has little time for its last words, and what goes wrong in them makes
        no difference. `bounded` says that its events bring only what is new, so that all of them
        together have a bound too. Sent again is only what has brought no piece yet.
        """
        last_words, begun = math.inf, False

        async def follow(ready: _Sendable) -> None:
            nonlocal begun, last_words
            token_count, request, call.tokens = 0, ready.request, ready.tokens
            usage: Mapping[str, int] = NOTHING
            total = most_bytes_of_stream(request) if bounded else None
            events = self.transport.events(
                ready.wire_request,
                call,
                lambda: min(call.ends, last_words),
                body=ready.body,
                most=ready.most,
                total=total,
            )
            async with contextlib.aclosing(events):
                async for data in events:
                    try:
                        for piece in _value(
                            json_of(data, "an event").bind(
                                functools.partial(self.pieces_in, request, token_count)
                            )
                        ):
                            begun = True
                            token_count += len(piece.token_ids or ())
                            usage = piece.usage or usage
                            if take(piece):
                                if piece.finish is None:  # the row ended by a rule of pipegen's own
                                    await self._abort(ready.wire_request.rid)
                                self._spent(call, request, usage, token_count)
                                return
                    except (HttpStatusError, AttemptFailed):
                        raise
                    except Exception as raised:  # a server's answer is foreign data
                        raise AttemptFailed(
                            self._unreadable(report(raised)), again=False
                        ) from raised
                    if last_words == math.inf and ended():
                        last_words = asyncio.get_running_loop().time() + LAST_WORDS
            if not ended():
                _value(malformed(f"{self.access.root} ended its stream before the row had ended"))
            self._spent(call, request, usage, token_count)

        async def attempt() -> None:
            try:
                while True:
                    ready = await self._ready(make, heavy, call)
                    try:
                        return await follow(ready)
                    except (asyncio.CancelledError, HttpStatusError, AttemptFailed) as stopped:
                        if ended() and not isinstance(stopped, asyncio.CancelledError):
                            return None
                        await self._ended(stopped, ready.facts, ready.request, ready.wire_request)
                    finally:
                        if isinstance(ready.body, Upload):
                            ready.body.let_go()
            except AttemptFailed as trouble:
                raise AttemptFailed(
                    trouble.error, again=trouble.again and not begun, later=trouble.later
                ) from trouble

        try:
            try:
                await attempt()
            except AttemptFailed as first:
                await self.transport.retry(first, attempt, call)
        except AttemptFailed as trouble:
            return trouble.error
        return None

    def pieces_in(
        self, request: ServerRequest, tokens_before: int, value: object
    ) -> Slot[tuple[Completion, ...]]:
        """The pieces of an event. Raises the error that it tells of: a stream's status was sent
        before anything went wrong.
        """
        if (within := error_within(value)) is not None:
            raise HttpStatusError(within)
        return self.wire.from_event(value, request, tokens_before)

    async def _ready(self, make: Make, heavy: bool, call: RowCall) -> _Sendable:
        """What to send, by the way that the server is known to offer. Raises `AttemptFailed` where
        there is none.
        """
        facts = self.directory.fresh or await self.facts(call.ends)
        if not heavy:
            return self._made(make, facts)
        loop_resources = await self.transport.here()
        try:
            with loop_resources.deadlines.by(call.ends):
                # until it has room: so few bodies wait that are made already
                async with loop_resources.preparing:
                    sendable = await asyncio.to_thread(self._made, make, facts)
                    upload = (
                        Upload(sendable.body, loop_resources.uploads.leave)
                        if isinstance(sendable.body, bytes)
                        else Upload(b"", loop_resources.uploads.leave)
                    )
                    sendable = sendable._replace(
                        body=upload, request=sendable.request._replace(messages=(), images=())
                    )
                    sendable = sendable._replace(
                        wire_request=sendable.wire_request._replace(body=None)
                    )
                    await loop_resources.uploads.enter(upload.size)
        except Late as late:
            raise AttemptFailed(
                self.transport.late("for its images to be made ready"), again=False
            ) from late
        return sendable

    def _made(self, make: Make, facts: Facts) -> _Sendable:
        rid = secrets.token_hex(16) if self.wire.abort is not None else ""
        model = _value(self.model(facts))
        request = self.completed(_value(make(facts)), model, rid)
        wire_request = _value(self.request(request, facts))
        tokens = self._tokens(request) if self.transport.rates.limited else 0
        return _Sendable(
            facts, request, wire_request, body_of(wire_request), most_bytes(request), tokens
        )

    def _tokens(self, request: ServerRequest) -> int:
        """The tokens that a request counts with. Raises `AttemptFailed` where no minute has as
        many.
        """
        prompt = (
            request.prompt_tokens
            or len(request.token_ids)
            or _estimated(request.messages, request.tools)
        )
        answer = request.options.max_new_tokens
        tokens = prompt + (self.transport.rates.longest if answer is None else answer)
        limit = self.transport.limits.tokens
        if limit is None or tokens <= limit:
            return tokens
        if answer is None and prompt < limit:
            return limit
        words = (
            f"the request may take {tokens} tokens (prompt {prompt}, answer {answer or 'any'}), and"
            f" tokens_per_minute allows {limit}"
        )
        hint = "lower max_new_tokens, shorten the prompt, or raise tokens_per_minute"
        raise AttemptFailed(InvalidRequest(words, hint=hint), again=False)

    async def _ended(
        self, ended: BaseException, facts: Facts, request: ServerRequest, wire_request: WireRequest
    ) -> None:
        """What the end of an attempt means: there is another way to ask, or `ended` goes on, and
        ends what it gave up on the server too.
        """
        if isinstance(ended, HttpStatusError):
            reply = ended.reply
            lacks = guard(
                lambda: self.wire.lacking(reply, wire_request), self._unreadable
            ).value_or("")
            if not lacks or lacks in facts.lacks:
                raise AttemptFailed(
                    self._refusal(reply, request),
                    again=reply.status in AGAIN,
                    later=await self.transport.is_later(reply.status),
                ) from ended
            self.directory.learn(lacks)
            return
        if not isinstance(ended, AttemptFailed) or isinstance(ended.error, Timeout):
            await self._abort(request.rid)
        raise ended

    def _refusal(self, reply: WireReply, request: ServerRequest) -> GenerationError:
        """The error of a refusal, whatever it holds, without any secret that the server
        repeated.
        """

        def failed(raised: Raised) -> GenerationError:
            words = (
                f"{self.access.root} answered {reply.status}, and its words cannot be read:"
                f" {self.access.scrub(raised.words)}"
            )
            return BackendFailed(
                words, backend=self.wire.name, scope="row", incident=raised.incident
            )

        def classified() -> GenerationError:
            return self.wire.classify(
                reply._replace(
                    body=self.access.scrub(reply.body.decode(errors="replace")).encode()
                ),
                request,
            )

        return unwrap_or_failure(guard(classified, failed))

    async def _abort(self, rid: str) -> None:
        if self.wire.abort is not None:
            await self.transport.abort(self.wire.abort(rid))


def _estimated(*parts: object) -> int:
    """About how many tokens messages and tools have: one for four bytes of text, and `IMAGE` for an
    image.

    >>> _estimated({"content": [{"text": "eight by"}, {"image_url": {"url": "data:..."}}]})
    1005
    """
    bytes_of_text, images, parts_left = 0, 0, [*parts]
    while parts_left:
        part = parts_left.pop()
        if isinstance(part, str):
            bytes_of_text += len(part.encode())
        elif isinstance(part, Mapping):
            images += "image_url" in part
            parts_left += [name for name in part if name != "image_url"]
            parts_left += [value for name, value in part.items() if name != "image_url"]
        elif isinstance(part, (list, tuple)):
            parts_left += part
    return bytes_of_text // 4 + images * IMAGE + 1


def _value(slot: Slot[R]) -> R:
    """The slot's value. Raises its failure as `AttemptFailed`: an answer that was malformed, or that
    the server gave up, may come whole when it is asked for again.
    """
    if not is_ok(slot):
        error = slot.failure()
        gave_up = isinstance(error, BackendFailed) and error.retryable
        raise AttemptFailed(error, again=gave_up or isinstance(error, MalformedResponse))
    return slot.unwrap()
