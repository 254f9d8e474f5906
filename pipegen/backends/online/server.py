"""The engine behind the token routes: pipegen renders, tokenises and cuts; a server generates, ids in and ids out."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any, Protocol

from immutabledict import immutabledict
from returns.result import Failure, Success

from pipegen.backends.base import RowDone, TokensMade
from pipegen.backends.online.access import Access
from pipegen.backends.online.loops import LoopThread
from pipegen.backends.online.reading import json_of, refused_ids
from pipegen.backends.online.rows import Row, raw_of
from pipegen.backends.online.sending import Make, Sender
from pipegen.backends.online.settings import ServerSettings
from pipegen.backends.online.transport import Refused, Trouble
from pipegen.backends.online.wire import Ask, Completion, Facts, Wire, WireReply, WireRequest
from pipegen.capabilities import ENGINES, Capabilities
from pipegen.errors import CallFailed, GenerationError, MalformedResponse
from pipegen.messages import ImageSource
from pipegen.options import GenerationOptions, VlmPreprocessOptions, resolve
from pipegen.plugins.plugin import Plugin
from pipegen.records import Encoded, PreparedImage, Raw
from pipegen.slots import Slot, is_ok
from pipegen.stages.follow import ending_ids
from pipegen.stages.preflight import check_fit
from pipegen.stages.stop import plan_stops
from pipegen.tokenizer import Renderer, Tokenizer

__all__ = ["LightModel", "ServerEngine"]


class LightModel(Protocol):
    """What is known of a model without its weights: a `Checkpoint`, or a stand-in for it."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def renderer(self) -> Renderer: ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...

    @property
    def bos_token(self) -> str | None: ...

    @property
    def image_placeholder(self) -> str | None: ...

    @property
    def image_token_id(self) -> int | None: ...

    @property
    def generation_config(self) -> immutabledict[str, Any]: ...

    @property
    def no_images_because(self) -> str: ...

    def prepare_image(self, source: ImageSource, options: VlmPreprocessOptions, index: int) -> Slot[PreparedImage]: ...


class ServerEngine:
    """An engine whose weights are in a server. Tokenizer, template, limits and pictures come from the checkpoint here, and nothing is asked before a call.

    It is also an `AsyncBackend`. `model` is the name by which the server is asked for it, unless the settings or the server itself say another.
    """

    def __init__(self, wire: Wire, checkpoint: LightModel, access: Access, settings: ServerSettings, model: str) -> None:
        self.name, self.wire = wire.name, wire
        self._checkpoint = checkpoint
        self._sender = Sender(wire, access, settings, model)
        self._loop = LoopThread()
        self._plugins: tuple[Plugin, ...] = ()

    def __repr__(self) -> str:
        return f"ServerEngine({self.name}, {self._sender.access.root})"

    @property
    def capabilities(self) -> Capabilities:
        """What is honoured; the context length is the server's, and unknown before it was asked."""
        facts = self._sender.directory.known
        reason = self._checkpoint.no_images_because
        if not reason and "generate" in facts.lacks:
            reason = "the server has no endpoint that takes them with token ids"
        honours = ENGINES.get(self.name, ENGINES["vllm_server"])
        return Capabilities(engine=self.name, honours=honours - {"images"} if reason else honours, context_length=self._limit(facts), reason=reason)

    def _limit(self, facts: Facts) -> int | None:
        model = self._sender.model(facts)
        return facts.models.get(model.unwrap() or "") if is_ok(model) else None

    @property
    def tokenizer(self) -> Tokenizer:
        return self._checkpoint.tokenizer

    @property
    def renderer(self) -> Renderer:
        return self._checkpoint.renderer

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return self._checkpoint.eos_token_ids

    @property
    def bos_token(self) -> str | None:
        return self._checkpoint.bos_token

    @property
    def image_placeholder(self) -> str | None:
        return self._checkpoint.image_placeholder

    @property
    def generation_config(self) -> immutabledict[str, Any]:
        return self._checkpoint.generation_config

    @property
    def plugins(self) -> tuple[Plugin, ...]:
        return self._plugins

    def prepare_image(self, source: ImageSource, options: VlmPreprocessOptions, index: int) -> Slot[PreparedImage]:
        return self._checkpoint.prepare_image(source, options, index)

    def with_plugin(self, plugin: Plugin) -> ServerEngine:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._plugins = (*self._plugins, plugin)
        return other

    def close(self) -> None:
        """Close all connections, and the thread that served synchronous callers."""
        self._sender.close()
        self._loop.close()

    # AsyncBackend

    def prepare(self, encoded: Encoded, *, stream: bool = False) -> Slot[WireRequest]:
        """The request for one row, given what is known of the server. Pure."""
        facts = self._sender.directory.known
        return self._sender.model(facts).bind(lambda model: self._ask(encoded, facts, model, "", stream)).bind(lambda ask: self.wire.to_wire(ask, facts))

    async def send(self, request: WireRequest) -> WireReply:
        """Send it, again where that is safe. Raises `CallFailed` with the typed error."""
        ask = Ask(options=resolve(GenerationOptions()))

        async def attempt(number: int) -> WireReply:
            try:
                return await self._sender.transport.once(request)
            except Refused as refused:
                raise Trouble(self._sender.classify(refused.reply, ask), again=refused.reply.status in (429, 502, 503, 504)) from refused

        try:
            return await self._sender.transport.again(attempt)
        except Trouble as trouble:
            raise CallFailed(trouble.error) from trouble

    def read(self, encoded: Encoded, reply: WireReply) -> Slot[Raw]:
        """The row's answer. Pure."""
        ask = Ask(options=encoded.options, prompt_tokens=len(encoded.prompt.token_ids))
        return json_of(reply.body).bind(lambda value: self.wire.from_wire(value, ask)).bind(lambda completions: self._read(encoded, completions))

    async def limit(self) -> int | None:
        """The server's context length in tokens; None where it does not say, or cannot be asked now."""
        return self._limit(await self._sender.directory.facts())

    def classify(self, reply: WireReply) -> GenerationError:
        """The error that a refusal stands for. Pure."""
        return self._sender.classify(reply, Ask(options=resolve(GenerationOptions())))

    # Calls

    def generate(self, inputs: Sequence[Encoded]) -> list[Slot[Raw]]:
        """One slot for each input, in order; a row that fails fails alone."""
        return self._loop.run(self.agenerate(inputs))

    def stream(self, inputs: Sequence[Encoded]) -> Iterator[TokensMade | RowDone]:
        """Tokens as they come, and one `RowDone` for each row."""
        return self._loop.iterate(lambda: self.astream(inputs))

    async def agenerate(self, inputs: Sequence[Encoded]) -> list[Slot[Raw]]:
        """As `generate`, on the caller's own loop."""
        deadline = self._sender.deadline()
        slots: list[Slot[Raw] | None] = [None] * len(inputs)
        facts = await self._sender.directory.facts() if inputs else Facts()

        async def one(position: int, encoded: Encoded) -> None:
            checked = self._checked(encoded, facts)
            slots[position] = await self._row(checked.unwrap(), deadline) if is_ok(checked) else Failure(checked.failure())

        await self._sender.each(inputs, one)
        return [slot for slot in slots if slot is not None]

    async def astream(self, inputs: Sequence[Encoded]) -> AsyncGenerator[TokensMade | RowDone, None]:
        """As `stream`, on the caller's own loop."""
        deadline = self._sender.deadline()
        events: asyncio.Queue[TokensMade | RowDone | None] = asyncio.Queue()

        async def one(position: int, encoded: Encoded) -> None:
            slot = await self._followed(position, encoded, deadline, events)
            events.put_nowait(RowDone(row=position, slot=slot))

        async def all_rows() -> None:
            try:
                await self._sender.directory.facts()
                await self._sender.each(inputs, one)
            finally:
                events.put_nowait(None)

        async with asyncio.TaskGroup() as group:
            at_work = group.create_task(all_rows())
            try:
                while (event := await events.get()) is not None:
                    yield event
            finally:
                at_work.cancel()

    def _checked(self, encoded: Encoded, facts: Facts) -> Slot[Encoded]:
        """The row as the server may be sent it: within its limit, and nothing that could crash it."""
        prompt = encoded.prompt
        refused = refused_ids(prompt.compact_token_ids, self.tokenizer.vocab_size, self._checkpoint.image_token_id, len(prompt.images))
        if refused is not None:
            return Failure(refused)
        return check_fit(encoded, dataclasses.replace(self.capabilities, context_length=self._limit(facts)))

    async def _row(self, encoded: Encoded, deadline: float | None) -> Slot[Raw]:
        if self._must_follow(encoded):
            return await self._followed(0, encoded, deadline, None)
        return await self._sender.whole(self._make(encoded, stream=False), lambda completions: self._read(encoded, completions), deadline)

    async def _followed(self, position: int, encoded: Encoded, deadline: float | None, events: asyncio.Queue[Any] | None) -> Slot[Raw]:
        """The row by its stream, ended by pipegen's own rules."""
        checked = self._checked(encoded, self._sender.directory.known)
        if not is_ok(checked):
            return Failure(checked.failure())
        row = Row(checked.unwrap(), self.tokenizer, self.eos_token_ids, self._plugins, self.name)

        def take(piece: Completion) -> bool:
            made = row.take(piece)
            if made and events is not None:
                events.put_nowait(TokensMade(row=position, token_ids=made))
            return row.done

        error = await self._sender.pieces(self._make(row.encoded, stream=True), take, deadline)
        return row.slot() if error is None else Failure(error)

    def _must_follow(self, encoded: Encoded) -> bool:
        """Whether only pipegen can end the row where it ends: plugins that watch, and stops that the server does not know as pipegen does."""
        plan = plan_stops(encoded.options, self.tokenizer)
        if plan.raw or any(plugin.feed is not None for plugin in self._plugins):
            return True
        return bool(plan.text) and not self._halts(encoded.options, self._sender.directory.known)

    def _halts(self, options: GenerationOptions, facts: Facts) -> bool:
        return "stops" not in facts.lacks and self.wire.halts(options)

    def _make(self, encoded: Encoded, *, stream: bool) -> Make:
        return lambda facts, model, rid: self._ask(encoded, facts, model, rid, stream)

    def _ask(self, encoded: Encoded, facts: Facts, model: str | None, rid: str, stream: bool) -> Slot[Ask]:
        options, prompt = encoded.options, encoded.prompt
        stops = plan_stops(options, self.tokenizer).text if self._halts(options, facts) else ()
        return Success(
            Ask(
                token_ids=prompt.compact_token_ids,
                options=options,
                ending_ids=ending_ids(options, self.tokenizer, self.eos_token_ids),
                stops=stops,
                images=prompt.images,
                prompt_tokens=len(prompt.token_ids),
                model=model,
                rid=rid,
                stream=stream,
                extra_body=self._sender.settings.extra_body,
            )
        )

    def _read(self, encoded: Encoded, completions: tuple[Completion, ...]) -> Slot[Raw]:
        if len(completions) != 1:
            return Failure(MalformedResponse(f"{self.name} gave {len(completions)} completions where one was asked"))
        return raw_of(encoded, completions[0], self.tokenizer.vocab_size, self.name)
