"""What an engine is to the rest of pipegen.

A `Backend` performs calls. An engine also knows its model, and there are two kinds: a `TokenEngine`
takes and gives token ids, so that pipegen renders, tokenises, decodes and cuts for it; a
`TextEngine` takes messages and gives text, as a chat server does. All but the calls works before
(and without) loading weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

from immutabledict import immutabledict
from typing_extensions import TypeIs

from pipegen.core.backend import (
    AsyncBackend,
    AsyncStreamBackend,
    Backend,
    StreamBackend,
    require_backend,
)
from pipegen.core.slots import Slot
from pipegen.engines.capabilities import Capabilities
from pipegen.engines.plugin import Plugin
from pipegen.engines.tokenizer import Renderer, Tokenizer
from pipegen.records.fields import record
from pipegen.records.messages import ImageSource
from pipegen.records.options import VlmPreprocessOptions
from pipegen.records.requests import GenerationRequest
from pipegen.records.results import Encoded, GenerationResult, PreparedImage, Raw, ResolvedRequest
from pipegen.records.scores import Continued, TokenScores

__all__ = [
    "Answers",
    "AsyncBackend",
    "AsyncScoresTokens",
    "AsyncStreamBackend",
    "Backend",
    "DependsOn",
    "Engine",
    "GeneratesByStream",
    "ReadsModel",
    "RowDone",
    "ScoresTokens",
    "StreamBackend",
    "TextEngine",
    "TextMade",
    "TokenEngine",
    "TokensMade",
    "answers_depend_on",
    "missing_members",
    "require_token_engine",
    "takes_tokens",
]


@record
class TokensMade:
    """While a call streams: row `row` (its position in the call's inputs) made these tokens."""

    row: int
    token_ids: tuple[int, ...]
    text: str | None = None
    """The text that is final with them; None where the engine does not decode, and who reads the
    stream does.
    """


@record
class RowDone:
    """While a call streams: row `row` is finished, with this answer."""

    row: int
    slot: Slot[Any]


@record
class TextMade:
    """While a call streams, on an engine that decodes by itself: row `row` brought this text, which
    is final, and this reasoning.
    """

    row: int
    text: str
    reasoning: str = ""


@runtime_checkable
class GeneratesByStream(Protocol):
    """An engine whose `generate` is its `stream`, read to the end: to read that instead costs
    nothing.
    """

    @property
    def generates_by_stream(self) -> bool: ...


@runtime_checkable
class Answers(Protocol):
    """What every engine says of the answers that it gives."""

    @property
    def identity(self) -> str: ...

    @property
    def plugins(self) -> tuple[Plugin, ...]: ...


@runtime_checkable
class ReadsModel(Protocol):
    """An engine of which more is known later than before a call: what a server tells."""

    def read_model(self) -> Any:
        """What is known before a call, as a `pipegen.engines.model.Model`; the same each time."""
        ...


@runtime_checkable
class DependsOn(Protocol):
    """An engine whose answers depend on more than its model."""

    @property
    def depends_on(self) -> Mapping[str, Any]:
        """All that its answers depend on, besides a request and its options, as plain data without
        secrets: `model`, and the settings that change answers.

        Values are resolved, and what is the default is left out; so `auto` and what it stands for
        are equal, and so are engines that compute the same. None is the value of what only a server
        could say, and has not.
        """
        ...


def answers_depend_on(backend: Any) -> Mapping[str, Any]:
    """What the answers of a backend depend on: by its `depends_on`, else by its `identity`, else by
    its name.
    """
    if isinstance(backend, DependsOn):
        return backend.depends_on
    return {"model": backend.identity if isinstance(backend, Answers) else backend.name}


class TokenEngine(Backend[Encoded, Raw], Protocol):
    """An engine that takes and gives token ids. It streams, and may be asynchronous
    (`AsyncBackend`, `AsyncStreamBackend`).
    """

    def stream(self, inputs: Sequence[Encoded]) -> Iterator[TokensMade | RowDone]:
        """Tokens of each row in order, and one `RowDone` for each row. Raises `CallFailed` as
        `generate` does.
        """
        ...

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def identity(self) -> str:
        """Which model answers, by its content: the same on every engine and machine, another for
        other weights. A job's finished rows are kept by it.
        """
        ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def renderer(self) -> Renderer: ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """All of the checkpoint's end tokens."""
        ...

    @property
    def bos_token(self) -> str | None:
        """The text that a plain prompt must begin with, where the tokenizer would put it there."""
        ...

    @property
    def image_placeholder(self) -> str | None:
        """The control token that stands for one image in a rendered prompt."""
        ...

    @property
    def generation_config(self) -> immutabledict[str, Any]:
        """The checkpoint's own generation settings."""
        ...

    def prepare_image(
        self, source: ImageSource, options: VlmPreprocessOptions, index: int
    ) -> Slot[PreparedImage]:
        """Decode, turn and resize one image (whose bytes are loaded) as this model wants it;
        pure.
        """
        ...

    def with_plugin(self, plugin: Plugin) -> TokenEngine:
        """The same engine (sharing its weights) with a plugin attached."""
        ...

    @property
    def plugins(self) -> tuple[Plugin, ...]: ...

    def close(self) -> None:
        """Release weights and memory; the engine loads again when it is needed again."""
        ...


@runtime_checkable
class ScoresTokens(Protocol):
    """A `TokenEngine` that also gives the log probabilities of given continuations."""

    @property
    def longest_scored(self) -> int | None:
        """The most tokens that context and continuation may have together; None where the engine
        names no limit.
        """
        ...

    def score(self, inputs: Sequence[Continued]) -> Sequence[Slot[TokenScores]]:
        """One slot for each input, in order, whatever rows it shares a call with. Raises as
        `generate` does.
        """
        ...


@runtime_checkable
class AsyncScoresTokens(Protocol):
    """A `ScoresTokens` that awaits its answers on the caller's own loop."""

    async def ascore(self, inputs: Sequence[Continued]) -> Sequence[Slot[TokenScores]]:
        """As `score`."""
        ...


@runtime_checkable
class SettlesItself(Protocol):
    """What a `TextEngine` does that a `TokenEngine` leaves to the stages."""

    def resolve(self, request: GenerationRequest) -> Slot[ResolvedRequest]:
        """The request with its effective options, or why the engine's own rendering cannot honour
        them; pure.
        """
        ...

    def result(self, answer: Any, route: str) -> Slot[GenerationResult]:
        """The finished result of a row's answer, cut and trimmed; pure."""
        ...


class TextEngine(SettlesItself, Backend[ResolvedRequest, Any], Protocol):
    """An engine that takes messages and gives text: it renders, tokenises and decodes by itself."""

    def stream(self, inputs: Sequence[ResolvedRequest]) -> Iterator[TextMade | RowDone]:
        """Text of each row in order, and one `RowDone` for each row. Raises `CallFailed` as
        `generate` does.
        """
        ...

    @property
    def identity(self) -> str:
        """Which model answers, by all that is known of it: its name and who serves it."""
        ...

    @property
    def capabilities(self) -> Capabilities: ...

    def with_plugin(self, plugin: Plugin) -> TextEngine:
        """The same engine (sharing its connections) with a plugin attached."""
        ...

    @property
    def plugins(self) -> tuple[Plugin, ...]: ...

    def close(self) -> None:
        """Release connections; they come again when they are needed again."""
        ...


Engine: TypeAlias = TokenEngine | TextEngine


def takes_tokens(engine: Engine) -> TypeIs[TokenEngine]:
    """Whether the engine takes token ids; a `TextEngine` does not."""
    return not isinstance(engine, SettlesItself)


def require_token_engine(stage: str, engine: Any) -> None:
    """Raise `TypeError` unless that is an engine that takes token ids, which the stages around its
    call are bound to.
    """
    require_backend(stage, engine)
    if not takes_tokens(engine):
        raise TypeError(
            f"{engine.name} renders and decodes by itself, so it has no stage {stage}: its stages"
            " are resolve, call and trim"
        )


_ALL = ("capabilities", "plugins")
_TOKENS = (
    "tokenizer",
    "renderer",
    "eos_token_ids",
    "bos_token",
    "image_placeholder",
    "generation_config",
)


def missing_members(engine: Any) -> tuple[str, ...]:
    """What the stages ask of an engine in every run and this one does not have. Nothing is read:
    that may load a model's configuration.
    """
    kind, own = type(engine), getattr(engine, "__dict__", {})
    names = (*_ALL, *_TOKENS) if takes_tokens(engine) else _ALL
    return (
        ()
        if hasattr(kind, "__getattr__")
        else tuple(name for name in names if name not in own and not hasattr(kind, name))
    )
