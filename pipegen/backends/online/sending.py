"""From an `Ask` to its completions: the one place where wire functions and transport meet, for whole answers and for streams."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from returns.result import Failure, Success

from pipegen.backends.online.access import Access
from pipegen.backends.online.errors import AGAIN
from pipegen.backends.online.facts import Directory
from pipegen.backends.online.reading import json_of, malformed
from pipegen.backends.online.remembered import Remembered
from pipegen.backends.online.settings import ServerSettings
from pipegen.backends.online.transport import Refused, Transport, Trouble
from pipegen.backends.online.wire import Ask, Completion, Facts, Wire, WireReply, WireRequest
from pipegen.errors import GenerationError, InvalidRequest, MalformedResponse, Timeout
from pipegen.slots import Slot, is_ok

__all__ = ["Asked", "Make", "Sender", "stream_rows"]

A = TypeVar("A")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
Make: TypeAlias = Callable[[Facts, str | None, str], Slot[Ask]]
"""The ask of a row, given what is known of the server, the model's name there, and the name of the attempt."""


class Asked(Protocol[R_co]):
    """A row that is asked for whole."""

    def ask(self, facts: Facts, model: str | None, rid: str) -> Slot[Ask]:
        """As `Make`."""
        ...

    def read(self, completions: tuple[Completion, ...]) -> Slot[R_co]:
        """The row's answer."""
        ...


class Sender:
    """Asks one server, by one engine's wire."""

    def __init__(self, wire: Wire, access: Access, settings: ServerSettings, model: str) -> None:
        self.wire, self.access, self.settings, self._model = wire, access, settings, model
        self.transport = Transport(access, timeout=settings.timeout, max_in_flight=settings.max_in_flight, retries=settings.retries)
        self.directory = Directory(self.transport, wire.about)
        self.model = Remembered(self._model_by)

    def deadline(self) -> float | None:
        """The running loop's time at which a call that begins now has spent its budget."""
        budget = self.settings.batch_budget
        return None if budget is None else asyncio.get_running_loop().time() + budget

    def _model_by(self, facts: Facts) -> Slot[str | None]:
        """The name that the server knows the model by; None where it could not be found out, which leaves it to the server."""
        if self.settings.served_model_name is not None:
            return Success(self.settings.served_model_name)
        served = tuple(facts.models)
        if self._model in served or not served:
            return Success(self._model if self._model in served else None)
        if len(served) == 1:
            return Success(served[0])
        words = f"{self.access.root} serves {', '.join(served)[:500]}, and none of them is {self._model!r}"
        return Failure(InvalidRequest(words, hint="say which with served_model_name"))

    def classify(self, reply: WireReply, ask: Ask) -> GenerationError:
        """The error of a refusal, without any secret that the server repeated."""
        scrubbed = WireReply(status=reply.status, headers=reply.headers, body=self.access.scrub(reply.body.decode(errors="replace")).encode())
        return self.wire.classify(scrubbed, ask)

    async def whole(self, row: Asked[R], deadline: float | None) -> Slot[R]:
        """The answer of one row; sent again where that is safe.

        A call keeps thousands of these waiting, and the garbage collector looks at all that each holds: so few coroutines, no closures, no timers.
        """
        try:
            try:
                return await self._read_once(row, deadline)
            except Trouble as first:
                return await self.transport.once_more(first, functools.partial(self._read_once, row, deadline), deadline)
        except Trouble as trouble:
            return Failure(trouble.error)

    async def _read_once(self, row: Asked[R], deadline: float | None, number: int = 0) -> Slot[R]:
        """One attempt at a whole answer. Raises `Trouble`."""
        while True:
            facts, ask, request = await self._asked(row.ask)
            try:
                reply = await self.transport.once(request, deadline)
            except (asyncio.CancelledError, Refused, Trouble) as ended:
                await self._ended(ended, facts, ask, request)
            else:
                return Success(_value(row.read(_value(self.wire.from_wire(_value(json_of(reply.body)), ask)))))

    async def pieces(
        self, make: Make, take: Callable[[Completion], bool], deadline: float | None, *, ended: Callable[[], bool] = lambda: False
    ) -> GenerationError | None:
        """Show `take` the pieces of one row as they come, until it says that the row is done; the error where there are no more before `ended` says so.

        Sent again is only what has brought no piece yet.
        """

        async def attempt(number: int) -> None:
            begun = False

            async def follow(ask: Ask, request: WireRequest) -> None:
                nonlocal begun
                seen = 0
                events = self.transport.events(request, deadline)
                async with contextlib.aclosing(events):
                    async for data in events:
                        for piece in _value(json_of(data, "an event").bind(functools.partial(self.pieces_in, ask, seen))):
                            begun = True
                            seen += len(piece.token_ids or ())
                            if take(piece):
                                if piece.finish is None:  # the row ended by a rule of pipegen's own
                                    await self._abort(request.rid)
                                return
                if not ended():
                    _value(malformed(f"{self.access.root} ended its stream before the row had ended"))

            try:
                while True:
                    facts, ask, request = await self._asked(make)
                    try:
                        return await follow(ask, request)
                    except (asyncio.CancelledError, Refused, Trouble) as stopped:
                        await self._ended(stopped, facts, ask, request)
            except Trouble as trouble:
                raise Trouble(trouble.error, again=trouble.again and not begun) from trouble

        try:
            await self.transport.again(attempt, deadline)
        except Trouble as trouble:
            return trouble.error
        return None

    def pieces_in(self, ask: Ask, seen: int, value: Any) -> Slot[tuple[Completion, ...]]:
        """The pieces of an event, or the error that it tells of: a stream's status was sent before anything went wrong."""
        if not isinstance(value, dict) or (value.get("error") is None and value.get("object") != "error"):
            return self.wire.from_event(value, ask, seen)
        held = value["error"] if isinstance(value.get("error"), dict) else value
        code = held.get("code")
        status = code if type(code) is int and 400 <= code < 600 else 500
        raise Refused(WireReply(status=status, body=json.dumps(value).encode()))

    async def _asked(self, make: Make) -> tuple[Facts, Ask, WireRequest]:
        """What to send, by the way that the server is known to offer. Raises `Trouble` where there is none."""
        facts = self.directory.fresh or await self.directory.facts()
        rid = uuid.uuid4().hex if self.wire.abort is not None else ""
        ask = _value(make(facts, _value(self.model(facts)), rid))
        wired = await asyncio.to_thread(self.wire.to_wire, ask, facts) if ask.images else self.wire.to_wire(ask, facts)
        return facts, ask, _value(wired)

    async def _ended(self, ended: BaseException, facts: Facts, ask: Ask, request: WireRequest) -> None:
        """What the end of an attempt means: there is another way to ask, or `ended` goes on, and ends what it gave up on the server too."""
        if isinstance(ended, Refused):
            lacks = self.wire.lacking(ended.reply, request)
            if not lacks or lacks in facts.lacks:
                raise Trouble(self.classify(ended.reply, ask), again=ended.reply.status in AGAIN) from ended
            self.directory.learn(lacks)
            return
        if not isinstance(ended, Trouble) or isinstance(ended.error, Timeout):
            await self._abort(ask.rid)
        raise ended

    async def each(self, rows: Sequence[A], one: Callable[[int, A], Awaitable[R]]) -> list[R]:
        """What `one` gives for every row, as many at a time as may be in flight. Cancelled, or where one raises, it cancels the others and waits for them."""
        left, made = iter(enumerate(rows)), dict[int, R]()

        async def work() -> None:
            for position, row in left:
                made[position] = await one(position, row)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(len(rows), self.settings.max_in_flight)):
                    group.create_task(work())
        except BaseExceptionGroup as several:
            raise several.exceptions[0] from several
        return [made[position] for position in range(len(rows))]

    def close(self) -> None:
        """Close all connections, and forget nothing that was found out."""
        self.transport.close()
        self.directory.close()

    async def _abort(self, rid: str) -> None:
        if self.wire.abort is not None:
            await self.transport.abort(self.wire.abort(rid))


async def stream_rows(sender: Sender, inputs: Sequence[A], one: Callable[[int, A, Callable[[Any], None]], Awaitable[None]]) -> AsyncGenerator[Any, None]:
    """The events that `one` tells of, for every row, as many at a time as may be in flight. Leaving early cancels the rows."""
    events: asyncio.Queue[Any] = asyncio.Queue()

    async def work() -> None:
        try:
            await sender.each(inputs, lambda position, row: one(position, row, events.put_nowait))
        finally:
            events.put_nowait(_END)

    at_work = asyncio.create_task(work())
    try:
        while (event := await events.get()) is not _END:
            yield event
        await at_work
    finally:
        at_work.cancel()
        await asyncio.gather(at_work, return_exceptions=True)


_END = object()


def _value(slot: Slot[R]) -> R:
    """The slot's value. Raises its failure as `Trouble`: a malformed answer may come whole when it is asked for again."""
    if not is_ok(slot):
        raise Trouble(slot.failure(), again=isinstance(slot.failure(), MalformedResponse))
    return slot.unwrap()
