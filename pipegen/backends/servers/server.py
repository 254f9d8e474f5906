"""The engine behind the token routes: pipegen renders, tokenises and cuts; a server generates, ids
in and ids out.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from returns.result import Failure, Success

from pipegen.answer.answer_check import UntrimmedAnswer, disobeyed
from pipegen.answer.barred import spellings
from pipegen.backends.checkpoint.checkpoint import Checkpoint
from pipegen.backends.checkpoint.checkpoint_engine import HasModelMetadata
from pipegen.backends.checkpoint.image_processors import grid_only
from pipegen.backends.checkpoint.positions import other_factors
from pipegen.backends.engine_rows import RowState, other_prompt
from pipegen.backends.http.transport import AttemptFailed, RowCall
from pipegen.backends.servers.finishes import ended_wrong
from pipegen.backends.servers.http_engine import HttpEngine, WholeRow
from pipegen.backends.servers.image_urls import places
from pipegen.backends.servers.logprobs import token_scores
from pipegen.backends.servers.reading import refused_ids
from pipegen.backends.servers.sending import Sender
from pipegen.backends.servers.wire import (
    Completion,
    Facts,
    LastCallCache,
    ServerRequest,
    skips_special,
)
from pipegen.core.errors import GenerationError, MalformedResponse, UnsupportedOption
from pipegen.core.foreign_calls import call_tokenizer
from pipegen.core.slots import Slot, is_ok
from pipegen.ending.stop_state import ending_ids, plan_of
from pipegen.engines.capabilities import ENGINES, Capabilities
from pipegen.engines.model import TokenModel, token_model
from pipegen.engines.protocol import TokensMade
from pipegen.records.fields import unchecked_replace
from pipegen.records.finish_words import meaning_of
from pipegen.records.messages import ImageSource
from pipegen.records.option_groups import VlmPreprocessOptions
from pipegen.records.option_records import GenerationOptions
from pipegen.records.results import Encoded, PreparedImage, Raw
from pipegen.records.scores import ScoreInput, TokenScores
from pipegen.stages.fitting import check_fit

SPARE = 16
"""Tokens by which a server may keep its rows shorter than the limit that it names."""
SAME = "see that the server runs the same checkpoint, with the same limits on images"


class _Ends(NamedTuple):
    """What ends a row at the server: all ids, and stop strings, all or none."""

    ids: tuple[int, ...]
    stops: tuple[str, ...]
    followed: bool
    """Whether its stream must be followed all the same."""


class ServerEngine(HasModelMetadata, HttpEngine[Encoded, Raw]):
    """An engine whose weights are in a server. Tokenizer, template, limits and images come from the
    checkpoint here, and nothing is asked before a call.
    """

    def __init__(self, sender: Sender, checkpoint: Checkpoint) -> None:
        super().__init__(sender)
        self._checkpoint = checkpoint
        self._ends = LastCallCache(self._ends_of)
        self._room = LastCallCache(self._room_by)

    @property
    def identity(self) -> str:
        """That of the checkpoint here; of a server whose weights are not here, its address and the
        model's name there too.
        """
        checkpoint_identity = self._checkpoint.identity
        return (
            checkpoint_identity
            if self._checkpoint.has_weights
            else f"{checkpoint_identity} {self.address}"
        )

    @property
    def depends_on(self) -> Mapping[str, object]:
        """See `answers_depend_on`. The server is taken to run the checkpoint as its files say, where it is
        asked for it by its own name.

        Of float32, vLLM and SGLang make another type, unless they are told not to: which one, is
        not known.
        """
        checkpoint = self._checkpoint
        values = self._depends_on(self.asked_settings())
        if values["served_model_name"] == self.sender.named:
            del values["served_model_name"]
        if not checkpoint.has_weights:
            values["base_url"] = self.server_root
        elif checkpoint.own_dtype == "float32":
            values["dtype"] = "the server's"
        return values

    def capabilities_by(self, facts: Facts) -> Capabilities:
        reason = self._checkpoint.images_unsupported_reason
        if not reason and "generate" in facts.lacks:
            reason = "the server has no endpoint that takes them with token ids"
        honours = ENGINES[self.name] if self.wire.honours is None else self.wire.honours
        if not self.wire.not_deterministic(facts):
            honours |= {"repeatable"}
        room = self._room(facts)
        return dataclasses.replace(
            room, honours=honours - {"images"} if reason else honours, reason=reason
        )

    def _room_by(self, facts: Facts) -> Capabilities:
        """The limits of a row, which is all that `check_fit` asks for."""
        fills = self.sender.settings.server_limit
        return Capabilities(
            engine=self.name,
            honours=frozenset(),
            context_length=self.limit_of(facts),
            vocab_size=self._checkpoint.vocab_size,
            adapters=tuple(self._checkpoint.load.adapters),
            fills_context=fills,
        )

    def read_model(self) -> TokenModel:
        return token_model(self, self.capabilities_by(Facts()))

    def prepare_image(
        self, source: ImageSource, options: VlmPreprocessOptions, index: int
    ) -> Slot[PreparedImage]:
        return grid_only(self._checkpoint.prepare_image(source, options, index), self.name)

    def row(self, engine_input: Encoded | ScoreInput, call: RowCall) -> Awaitable[Slot[Any]]:
        if isinstance(engine_input, ScoreInput):
            return self._score(engine_input, call)
        if self._must_follow(engine_input.options):
            return self.followed(0, engine_input, call, None)
        return (
            self._imaged(engine_input, call)
            if engine_input.prompt.images
            else self.sender.whole(_Whole(self, engine_input), call)
        )

    async def _imaged(self, encoded: Encoded, call: RowCall) -> Slot[Raw]:
        ready = await self._ready(encoded, call)
        return (
            await self.sender.whole(_Whole(self, *ready.unwrap()), call)
            if is_ok(ready)
            else Failure(ready.failure())
        )

    async def followed(
        self,
        position: int,
        engine_input: Encoded | ScoreInput,
        call: RowCall,
        tell: Callable[[TokensMade], None] | None,
    ) -> Slot[Any]:
        """The row by its stream, ended by pipegen's own rules."""
        if isinstance(engine_input, ScoreInput):
            return await self._score(engine_input, call)
        ready = await self._ready(engine_input, call)
        if not is_ok(ready):
            return Failure(ready.failure())
        encoded, features = ready.unwrap()
        row = ServerRow(self, encoded, position, text=tell is not None)

        def take(piece: Completion) -> bool:
            event = row.take_piece(piece)
            if event is not None and tell is not None:
                tell(event)
            return row.done

        make = functools.partial(self.ask, encoded, True, features=features)
        error = await self.sender.pieces(
            make, take, call, heavy=self.heavy(encoded), ended=lambda: row.done
        )
        return row.slot() if error is None else Failure(error)

    async def _ready(self, unchecked: Encoded, call: RowCall) -> Slot[tuple[Encoded, object]]:
        """The row as the server may be sent it, and what the server makes of its images, where it
        must be asked to keep their sizes first.
        """
        try:
            checked = self.checked(unchecked, await self.sender.facts(call.ends))
        except AttemptFailed as late:
            return Failure(late.error)
        resized = self._checkpoint.check_server_resize(unchecked.prompt) if is_ok(checked) else None
        if resized is None:
            return checked.map(lambda encoded: (encoded, None))
        features_slot = await self.sender.whole(_Resized(self, unchecked), call)
        if not is_ok(features_slot) and "render" in self.known.lacks:
            return Failure(resized)
        return features_slot.bind(lambda features: checked.map(lambda encoded: (encoded, features)))

    def checked(self, encoded: Encoded, facts: Facts) -> Slot[Encoded]:
        """The row as the server may be sent it: within its limit, and nothing that could crash it
        or mislead it.
        """
        prompt = encoded.prompt
        refusal: GenerationError | None = refused_ids(
            prompt.compact_token_ids,
            self.tokenizer.vocab_size,
            self._checkpoint.image_token_id,
            len(prompt.images),
        )
        if not self.wire.keeps_sizes:
            refusal = refusal or self._checkpoint.check_server_resize(prompt)
        if encoded.options.bad_words and self.wire.unsupported_words is not None:
            refusal = refusal or self.wire.unsupported_words(
                encoded.options.bad_words, self.tokenizer
            )
        adapter = encoded.options.adapter
        if adapter and facts.models and adapter not in facts.adapters:
            has = f"its adapters are {', '.join(sorted(facts.adapters))}"[:500]
            refusal = refusal or UnsupportedOption(
                f"{self.server_root} has no adapter {adapter!r}:"
                f" {has if facts.adapters else 'it has loaded none'}",
                option="adapter",
                hint="load it there under this name (--lora-modules, --lora-paths)",
            )
        if self._checkpoint.load.deterministic and (hint := self.wire.not_deterministic(facts)):
            refusal = refusal or UnsupportedOption(
                f"{self.server_root} does not report that answers are independent of their batch",
                option="deterministic",
                hint=hint,
            )
        if refusal is not None:
            return Failure(refusal)
        room = self._room(facts)
        factors_error = other_factors(self._checkpoint.positions, encoded, room)
        return check_fit(encoded, room) if factors_error is None else Failure(factors_error)

    @property
    def longest_scored(self) -> int | None:
        """One token less than the server's limit: it generates one behind them. Unknown before it
        was asked.
        """
        limit = self.limit_of(self.known)
        return None if limit is None else limit - 1

    async def _score(self, continued: ScoreInput, call: RowCall) -> Slot[TokenScores]:
        ready = await self._ready(continued.whole, call)
        if not is_ok(ready):
            return Failure(ready.failure())
        scored: Slot[Any] = await self.sender.whole(
            _ScoringRow(self, *ready.unwrap(), continued=continued), call
        )
        return scored

    def _must_follow(self, options: GenerationOptions) -> bool:
        """Whether only pipegen can end the row where it ends: plugins that watch, and stops that
        the server does not know as pipegen does.
        """
        watched = bool(self.plugins) and any(plugin.feed is not None for plugin in self.plugins)
        return watched or self._ends(options, self.known).followed

    def _ends_of(self, options: GenerationOptions, facts: Facts) -> _Ends:
        """How rows with these options end."""
        plan, server_side_stops = (
            plan_of(options, self.tokenizer),
            self.wire.server_side_stops(options) - facts.lacks,
        )
        ids = ending_ids(options, self.tokenizer, self.eos_token_ids, self._checkpoint.vocab_size)
        hidden = self.wire.raw_stops and skips_special(options)
        at_server = "stops" in server_side_stops and not (
            hidden
            and any(touches(stop, tuple(self.tokenizer.special_tokens)) for stop in plan.text)
        )
        stops = plan.text if at_server else ()
        return _Ends(
            ids,
            stops,
            followed=bool(plan.raw)
            or stops != plan.text
            or (bool(ids) and "ids" not in server_side_stops),
        )

    def heavy(self, engine_input: Encoded) -> bool:
        return bool(engine_input.prompt.images)

    def ask(
        self, engine_input: Encoded, stream: bool, facts: Facts, features: object = None
    ) -> Slot[ServerRequest]:
        prompt, images, ends = (
            engine_input.prompt,
            engine_input.prompt.images,
            self._ends(engine_input.options, facts),
        )
        return Success(
            ServerRequest(
                token_ids=prompt.compact_token_ids if features is None else prompt.token_ids,
                options=engine_input.options,
                ending_ids=ends.ids,
                stops=ends.stops,
                images=images,
                places=places(prompt, self._checkpoint.image_token_id) if images else (),
                resized=bool(images) and self._checkpoint.check_server_resize(prompt) is not None,
                features=features,
                prompt_tokens=len(prompt.token_ids),
                stream=stream,
            )
        )

    def answer(self, engine_input: Encoded, completion: Completion) -> Slot[Raw]:
        """The row's answer. One that the server ended as it was asked to is not followed: the
        stages `decode` and `stop` judge its ids once more anyway.
        """
        meaning = None if completion.finish is None else meaning_of(completion.finish)
        if meaning in ("stop", "length"):
            completion = unchecked_replace(completion, finish=meaning)
        ids, options, finish = completion.token_ids, engine_input.options, completion.finish
        if ids is None:
            return Failure(MalformedResponse(f"{self.name} gives no token ids"))
        wrong = self.unusable(engine_input, completion) or self.disobeyed(engine_input, completion)
        if wrong is not None:
            return Failure(wrong)
        if (
            len(ids) == options.max_new_tokens
            if finish == "length"
            else finish == "stop" and len(ids) >= max(1, options.min_new_tokens or 0)
        ):
            return Success(Raw(encoded=engine_input, token_ids=ids, logprobs=completion.logprobs))
        row = ServerRow(self, engine_input)
        row.take_piece(completion)
        return row.slot()

    def unusable(self, engine_input: Encoded, completion: Completion) -> MalformedResponse | None:
        """What is wrong where the server ran another prompt, or generated an id that is none; None
        where it did neither.
        """
        ran, ids = completion.prompt_token_ids, completion.token_ids or (0,)
        wrong = other_prompt(ran, engine_input.prompt, self.name, SAME)
        if wrong is not None or max(ids) < self.tokenizer.vocab_size:
            return wrong
        has = f"the vocabulary has {self.tokenizer.vocab_size} ids"
        return MalformedResponse(f"{self.name} generated id {max(ids)}, and {has}")

    def disobeyed(self, engine_input: Encoded, completion: Completion) -> MalformedResponse | None:
        """What is wrong with an answer, beside what the server was sent."""
        facts, usage = self.known, completion.usage
        ends, limit = self._ends(engine_input.options, facts), self.limit_of(facts)
        answer = UntrimmedAnswer(
            finish=completion.finish,
            token_ids=completion.token_ids,
            token_count=usage.get("completion_tokens"),
            ending_ids=frozenset(ends.ids),
            stops=bool(ends.stops),
            # for so many tokens the server is sure to have room behind this prompt
            room=None if limit is None else limit - len(engine_input.prompt.token_ids) - SPARE,
            barred=spellings(engine_input.options.bad_words or (), self.tokenizer),
            prompt=engine_input.prompt.token_ids,
            prompt_count=usage.get("prompt_tokens"),
        )
        return disobeyed(answer, engine_input.options, self.name)


@dataclass(slots=True)
class _Whole(WholeRow[Encoded, Raw]):
    """A row that is asked for whole, checked against what the server says."""

    # it is never another
    engine: ServerEngine  # pyright: ignore[reportIncompatibleVariableOverride]
    features: object = None

    def ask(self, facts: Facts) -> Slot[ServerRequest]:
        def ask(checked: Encoded) -> Slot[ServerRequest]:
            self.asked = checked
            return self.engine.ask(checked, False, facts, self.features)

        return self.engine.checked(self.asked, facts).bind(ask)


class _Resized(_Whole):
    """What the server makes of a row's images."""

    def read(self, completions: tuple[Completion, ...]) -> Slot[Any]:
        return Success(completions[0].features)


@dataclass(slots=True)
class _ScoringRow(_Whole):
    """A row of which the log probabilities of its prompt's last tokens are asked."""

    continued: ScoreInput = dataclasses.field(kw_only=True)

    def ask(self, facts: Facts) -> Slot[ServerRequest]:
        if not self.engine.wire.scores(facts, self.asked.options.adapter):
            words = f"{self.engine.server_root} gives no log probabilities of given tokens"
            hint = "ask hf or sglang_server, or a vLLM server without adapters"
            option = self.continued.option
            return Failure(UnsupportedOption(words, option=option, hint=hint))
        return _Whole.ask(self, facts).map(
            lambda request: request._replace(
                scored=len(self.continued.continuation), scored_top=self.continued.top
            )
        )

    def read(self, completions: tuple[Completion, ...]) -> Slot[Any]:
        (completion,), engine = completions, self.engine
        wrong = other_prompt(completion.prompt_token_ids, self.asked.prompt, engine.name, SAME)
        if wrong is not None or completion.scores is None:
            return Failure(
                wrong or MalformedResponse(f"{engine.name} gives no log probabilities of a prompt")
            )
        return Success(token_scores(self.continued, completion.scores))


@functools.lru_cache(maxsize=4096)
def touches(stop: str, tokens: tuple[str, ...]) -> bool:
    """Whether a stop string could match within the text of one of these tokens, or across its edge.

    >>> (
    ...     touches("|", ("<|im_end|>",)),
    ...     touches("a<", ("<|im_end|>",)),
    ...     touches("END", ("<|im_end|>",)),
    ... )
    (True, True, False)
    """
    edges = range(1, len(stop))
    return any(
        stop in token
        or token in stop
        or any(token.startswith(stop[at:]) or token.endswith(stop[:at]) for at in edges)
        for token in tokens
    )


class ServerRow(RowState):
    """A row on a server, whole or piece by piece: it is done where pipegen's rules end it, whatever
    the server goes on to say.
    """

    def __init__(
        self, server: ServerEngine, encoded: Encoded, position: int = 0, *, text: bool = False
    ) -> None:
        tokenizer, ends = server.tokenizer, server.eos_token_ids
        super().__init__(position, encoded, tokenizer, ends, server.plugins, text=text)
        self._server, self._words = server, ""
        self._finish: str | None = None

    @property
    def done(self) -> bool:
        """Whether nothing more is wanted of the server."""
        return self._finish is not None or super().done

    def take_piece(self, piece: Completion) -> TokensMade | None:
        """Take a piece; the event of the tokens that belong to the row."""
        self.fail(self._server.unusable(self.encoded, piece))
        event = self.take(piece.token_ids or (), piece.logprobs) if self.error is None else None
        self._finish, self._words = piece.finish, piece.words
        return event

    def slot(self) -> Slot[Raw]:
        """The finished row's answer.

        A server that ends a row for its length before `max_new_tokens` has clipped it. The options
        then say what was really allowed, and `clipped_from` what was asked.
        """
        if self.error is None and self.fold.finish is None:
            count, limit = len(self.token_ids), self.options.max_new_tokens or 0
            meaning = None if self._finish is None else meaning_of(self._finish)
            if meaning == "unknown" and count == limit:
                meaning = "length"
            if meaning in ("failed", "refused", "unknown"):
                self.fail(
                    ended_wrong(
                        self._server.name,
                        str(self._finish),
                        self._words,
                        call_tokenizer(self._server.tokenizer.decode, self.token_ids),
                    )
                )
            self._finish = meaning
            self.aborted = meaning is None
            if not self.aborted and not count:
                self.fail(
                    MalformedResponse(
                        f"{self._server.name} ended the row as {self._finish!r} without a token"
                    )
                )
            whole = Completion(finish=self._finish, token_ids=tuple(self.token_ids))
            self.fail(self._server.disobeyed(self.encoded, whole))
            if self.error is None and self._finish == "length":
                clipped = dataclasses.replace(self.options, max_new_tokens=count)
                self.encoded = dataclasses.replace(
                    self.encoded, options=clipped, clipped_from=self.encoded.clipped_from or limit
                )
        return super().slot()
