"""The engine behind the token routes: pipegen renders, tokenises and cuts; a server generates, ids in and ids out."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from returns.result import Failure, Success

from pipegen.backends.checkpoint.image_processors import grid_only
from pipegen.backends.checkpoint.metadata import LightModel, OnModel
from pipegen.backends.checkpoint.positions import other_factors
from pipegen.backends.http.access import Access
from pipegen.backends.http.last_call import LastCallCache
from pipegen.backends.http.transport import AttemptFailed
from pipegen.backends.servers.http_engine import HttpEngine
from pipegen.backends.servers.images import places
from pipegen.backends.servers.reading import refused_ids
from pipegen.backends.servers.rows import ServerRow, touches
from pipegen.backends.servers.sending import Make
from pipegen.backends.servers.wire import Completion, Facts, ServerRequest, Wire
from pipegen.core.errors import GenerationError, MalformedResponse
from pipegen.core.slots import Slot, is_ok
from pipegen.engines.capabilities import ENGINES, Capabilities
from pipegen.engines.protocol import TokensMade
from pipegen.engines.settings import ServerSettings
from pipegen.records.engine_list import shown
from pipegen.records.messages import ImageSource
from pipegen.records.options import GenerationOptions, VlmPreprocessOptions
from pipegen.records.results import Encoded, PreparedImage, Raw
from pipegen.records.secret import revealed
from pipegen.stages.fitting import check_fit
from pipegen.stages.parts.row_decoder import ending_ids
from pipegen.stages.stopping import plan_stops

__all__ = ["ServerEngine"]


class _Ends(NamedTuple):
    """What ends a row at the server: all ids, and stop strings, all or none."""

    ids: tuple[int, ...]
    stops: tuple[str, ...]
    followed: bool
    """Whether its stream must be followed all the same."""


class ServerEngine(OnModel, HttpEngine[Encoded, Raw]):
    """An engine whose weights are in a server. Tokenizer, template, limits and images come from the checkpoint here, and nothing is asked before a call."""

    def __init__(self, wire: Wire, checkpoint: LightModel, access: Access, settings: ServerSettings, model: str) -> None:
        super().__init__(wire, access, settings, model)
        self._checkpoint: LightModel = checkpoint
        self._ends = LastCallCache(self._ends_of)

    @property
    def identity(self) -> str:
        """That of the checkpoint here; of a server whose weights are not here, its address and the model's name there too."""
        own = self._checkpoint.identity
        return own if self._checkpoint.has_weights else f"{own} {self.address}"

    def _capable_by(self, facts: Facts) -> Capabilities:
        reason = self._checkpoint.images_unsupported_reason
        if not reason and "generate" in facts.lacks:
            reason = "the server has no endpoint that takes them with token ids"
        honours = ENGINES[self.name] if self.wire.honours is None else self.wire.honours
        if facts.about.get("enable_deterministic_inference") is True:
            honours |= {"repeatable"}
        limits = {"context_length": self.limit_of(facts), "vocab_size": self._checkpoint.vocab_size}
        return Capabilities(engine=self.name, honours=honours - {"images"} if reason else honours, reason=reason, **limits)

    def prepare_image(self, source: ImageSource, options: VlmPreprocessOptions, index: int) -> Slot[PreparedImage]:
        return grid_only(self._checkpoint.prepare_image(source, options, index), self.name)

    def row(self, asked: Encoded, deadline: float) -> Awaitable[Slot[Raw]]:
        if self._must_follow(asked.options):
            return self.followed(0, asked, deadline, None)
        return self._imaged(asked, deadline) if asked.prompt.images else self.sender.whole(_Whole(self, asked), deadline)

    async def _imaged(self, asked: Encoded, deadline: float) -> Slot[Raw]:
        ready = await self._ready(asked, deadline)
        return await self.sender.whole(_Whole(self, *ready.unwrap()), deadline) if is_ok(ready) else Failure(ready.failure())

    async def followed(self, position: int, asked: Encoded, deadline: float, tell: Callable[[TokensMade], None] | None) -> Slot[Raw]:
        """The row by its stream, ended by pipegen's own rules."""
        ready = await self._ready(asked, deadline)
        if not is_ok(ready):
            return Failure(ready.failure())
        encoded, features = ready.unwrap()
        row = self._row(encoded, position=position, text=tell is not None)

        def take(piece: Completion) -> bool:
            event = row.take_piece(piece)
            if event is not None and tell is not None:
                tell(event)
            return row.done

        make = self.make(encoded, stream=True, features=features)
        error = await self.sender.pieces(make, take, deadline, heavy=bool(encoded.prompt.images), ended=lambda: row.done)
        return row.slot() if error is None else Failure(error)

    async def _ready(self, asked: Encoded, deadline: float) -> Slot[tuple[Encoded, Any]]:
        """The row as the server may be sent it, and what the server makes of its images, where it must be asked to keep their sizes first."""
        try:
            checked = self.checked(asked, await self.sender.facts(deadline))
        except AttemptFailed as late:
            return Failure(late.error)
        resized = self._checkpoint.check_server_resize(asked.prompt) if is_ok(checked) else None
        if resized is None:
            return checked.map(lambda encoded: (encoded, None))
        made = await self.sender.whole(_Resized(self, asked), deadline)
        if not is_ok(made) and "render" in self.sender.directory.known.lacks:
            return Failure(resized)
        return made.bind(lambda features: checked.map(lambda encoded: (encoded, features)))

    def checked(self, encoded: Encoded, facts: Facts) -> Slot[Encoded]:
        """The row as the server may be sent it: within its limit, and nothing that could crash it or mislead it."""
        prompt = encoded.prompt
        refused: GenerationError | None = refused_ids(prompt.compact_token_ids, self.tokenizer.vocab_size, self._checkpoint.image_token_id, len(prompt.images))
        if not self.wire.keeps_sizes:
            refused = refused or self._checkpoint.check_server_resize(prompt)
        if refused is not None:
            return Failure(refused)
        room = _room_for(self.name, self.limit_of(facts), self._checkpoint.vocab_size)
        other = other_factors(self._checkpoint.positions, encoded, room)
        return check_fit(encoded, room) if other is None else Failure(other)

    def _must_follow(self, options: GenerationOptions) -> bool:
        """Whether only pipegen can end the row where it ends: plugins that watch, and stops that the server does not know as pipegen does."""
        return any(plugin.feed is not None for plugin in self.plugins) or self._ends(options, self.sender.directory.known).followed

    def _ends_of(self, options: GenerationOptions, facts: Facts) -> _Ends:
        """How rows with these options end."""
        plan, server_side_stops = plan_stops(options, self.tokenizer), self.wire.server_side_stops(options) - facts.lacks
        ids = ending_ids(options, self.tokenizer, self.eos_token_ids, self._checkpoint.vocab_size)
        hidden = self.wire.raw_stops and (options.decode is None or options.decode.skip_special_tokens is not False)
        told = "stops" in server_side_stops and not (hidden and any(touches(stop, tuple(self.tokenizer.special_tokens)) for stop in plan.text))
        stops = plan.text if told else ()
        return _Ends(ids, stops, followed=bool(plan.raw) or stops != plan.text or (bool(ids) and "ids" not in server_side_stops))

    def make(self, asked: Encoded, *, stream: bool, features: Any = None) -> Make:
        return functools.partial(self.ask, asked, stream, features)

    def ask(self, asked: Encoded, stream: bool, features: Any, facts: Facts, model: str | None, rid: str) -> Slot[ServerRequest]:
        prompt, ends = asked.prompt, self._ends(asked.options, facts)
        return Success(
            ServerRequest(
                token_ids=prompt.compact_token_ids if features is None else prompt.token_ids,
                options=asked.options,
                ending_ids=ends.ids,
                stops=ends.stops,
                images=prompt.images,
                places=places(prompt, self._checkpoint.image_token_id),
                resized=bool(prompt.images) and self._checkpoint.check_server_resize(prompt) is not None,
                features=features,
                prompt_tokens=len(prompt.token_ids),
                model=model,
                rid=rid,
                stream=stream,
                extra_body=revealed(self.sender.settings.extra_body),
            )
        )

    def answer(self, asked: Encoded, completions: tuple[Completion, ...]) -> Slot[Raw]:
        if len(completions) != 1:
            return Failure(MalformedResponse(f"{shown(self.name)} gave {len(completions)} completions where one was asked"))
        if completions[0].token_ids is None:
            return Failure(MalformedResponse(f"{self.name} gives no token ids"))
        row = self._row(asked)
        row.take_piece(completions[0])
        return row.slot()

    def _row(self, encoded: Encoded, *, position: int = 0, text: bool = False) -> ServerRow:
        return ServerRow(encoded, self.tokenizer, self.eos_token_ids, self.plugins, self.name, position=position, text=text)


@dataclass(slots=True)
class _Whole:
    """A row that is asked for whole."""

    engine: ServerEngine
    encoded: Encoded
    features: Any = None

    @property
    def heavy(self) -> bool:
        return bool(self.encoded.prompt.images)

    def ask(self, facts: Facts, model: str | None, rid: str) -> Slot[ServerRequest]:
        checked = self.engine.checked(self.encoded, facts)
        if not is_ok(checked):
            return Failure(checked.failure())
        self.encoded = checked.unwrap()
        return self.engine.ask(self.encoded, False, self.features, facts, model, rid)

    def read(self, completions: tuple[Completion, ...]) -> Slot[Any]:
        return self.engine.answer(self.encoded, completions)


class _Resized(_Whole):
    """What the server makes of a row's images."""

    def read(self, completions: tuple[Completion, ...]) -> Slot[Any]:
        return Success(completions[0].features)


@functools.lru_cache(maxsize=64)
def _room_for(name: str, limit: int | None, vocab_size: int | None) -> Capabilities:
    """What `check_fit` asks of an engine: its name and its limits."""
    return Capabilities(engine=name, honours=frozenset(), context_length=limit, vocab_size=vocab_size)
