"""What an engine is to the rest of pipegen.

A `Backend` performs calls. An engine also knows its model, and there are two kinds. A `TokenEngine`
takes and gives token ids, and pipegen renders, tokenises, decodes and cuts for it. A `TextEngine`
takes messages and gives text, as a chat server does. All but the calls works before (and without)
loading weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeAlias

from immutabledict import immutabledict
from typing_extensions import TypeIs, get_protocol_members

from pipegen.core.backend import Backend, require_backend
from pipegen.core.slots import Slot
from pipegen.engines.capabilities import Capabilities
from pipegen.engines.plugin import Plugin
from pipegen.engines.tokenizer import Renderer, Tokenizer
from pipegen.records.fields import record
from pipegen.records.messages import ImageSource
from pipegen.records.option_groups import VlmPreprocessOptions
from pipegen.records.requests import GenerationRequest
from pipegen.records.results import Encoded, GenerationResult, PreparedImage, Raw, ResolvedRequest


@record
class TokensMade:
    """While a call streams: row `row` (its position in the call's inputs) made these tokens."""

    row: int
    """The position of the row in the call."""
    token_ids: tuple[int, ...]
    """The new ids, in order."""
    text: str | None = None
    """The text that is final with them; None where the engine does not decode, and who reads the
    stream does.
    """


@record
class RowDone:
    """While a call streams: row `row` is finished, with this answer."""

    row: int
    """The position of the row in the call."""
    slot: Slot[Any]
    """The answer of the row."""
    retries: int = 0
    """How often the row was sent to a server again."""


@record
class TextMade:
    """While a call streams, on an engine that decodes by itself: row `row` brought this text, which
    is final, and this reasoning.
    """

    row: int
    """The position of the row in the call."""
    text: str
    """The new text."""
    reasoning: str = ""
    """The new reasoning."""


@dataclass(slots=True)
class PromptWork:
    """What an engine has counted of prompts, where it does not compute them itself.

    >>> work = PromptWork()
    >>> work.count(10, cached=4)
    >>> work
    PromptWork(prompt_tokens=6, shared_tokens=4)
    """

    prompt_tokens: int = 0
    """Those that it read."""
    shared_tokens: int = 0
    """Those that were in its prefix cache, where it reports them."""

    def count(self, tokens: int, *, cached: int) -> None:
        """Count a prompt of `tokens`, of which `cached` were there."""
        shared = min(max(cached, 0), tokens)
        self.prompt_tokens += tokens - shared
        self.shared_tokens += shared


Event: TypeAlias = TokensMade | TextMade | RowDone


def answers_depend_on(backend: Any) -> Mapping[str, Any]:
    """All that the answers of a backend depend on, besides a request and its options, as plain data
    without secrets. It is its `depends_on`, else its `identity` as `model`, else its name.

    `depends_on` has `model`, and the settings that change answers. Values are resolved, and what is
    the default is left out. So `auto` and what it stands for are equal, and so are engines that
    compute the same. None is the value of what only a server could say, and has not.
    """
    if hasattr(backend, "depends_on"):
        depends: Mapping[str, object] = backend.depends_on
        return depends
    return {"model": getattr(backend, "identity", backend.name)}


def rewrites_of(engine: object) -> tuple[str, ...]:
    """What the engine's renderer changes in messages before the chat template reads them (see
    `pipegen.engines.tokenizer.Renderer`): its `rewrites`, else its renderer's.
    """
    own: tuple[str, ...] | None = getattr(engine, "rewrites", None)
    return getattr(getattr(engine, "renderer", None), "rewrites", ()) if own is None else own


class _ModelEngine(Protocol):
    """What engines of both kinds have beside their calls."""

    @property
    def capabilities(self) -> Capabilities:
        """What the engine honours, and its limits."""
        ...

    @property
    def identity(self) -> str:
        """Which model answers. A job's finished rows are kept by it.

        Of a `TokenEngine` it goes by the model's content: the same on every engine and machine,
        another for other weights. Of a `TextEngine` it goes by its name and who serves it.
        """
        ...

    def with_plugin(self, plugin: Plugin) -> Self:
        """The same engine (sharing its weights, or its connections) with a plugin attached."""
        ...

    @property
    def plugins(self) -> tuple[Plugin, ...]:
        """The attached plugins, in order."""
        ...

    def close(self) -> None:
        """Release weights, memory and connections; they come again when they are needed again."""
        ...


class TokenEngine(_ModelEngine, Backend[Encoded, Raw], Protocol):
    """An engine that takes and gives token ids.

    It may have more, and does without by default:

    - `stream(inputs)` gives the tokens of each row in order (`TokensMade`), and one `RowDone` for
      each row. Otherwise text is streamed when all is done.
    - `score(inputs)` gives the log probabilities of continuations: a slot of `TokenScores` for each
      `ScoreInput`, whatever rows it shares a call with. `longest_scored` is the most tokens that
      context and continuation may have together; None where the engine names no limit.
    - `read_model()` gives the `pipegen.engines.model.Model` that is known before a call, the same
      each time, where more is known later: what a server tells.
    - `depends_on`: see `answers_depend_on`.
    - `rewrites`, where that is known before its renderer is loaded: see `rewrites_of`.
    - `open` and `in_flight`, where it takes rows while it works: `pipegen.engines.session`.
    """

    @property
    def tokenizer(self) -> Tokenizer:
        """Text to ids and back."""
        ...

    @property
    def renderer(self) -> Renderer:
        """Messages to text, by the chat template."""
        ...

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


class TextEngine(_ModelEngine, Backend[ResolvedRequest, Any], Protocol):
    """An engine that takes messages and gives text: it renders, tokenises and decodes by itself.

    It may have `stream(inputs)` as a `TokenEngine`, which gives text (`TextMade`).
    """

    def resolve(self, request: GenerationRequest) -> Slot[ResolvedRequest]:
        """The request with its effective options, or why the engine's own rendering cannot honour
        them; pure.
        """
        ...

    def result(self, answer: Any, route: str) -> Slot[GenerationResult]:
        """The finished result of a row's answer, cut and trimmed; pure."""
        ...


Engine: TypeAlias = TokenEngine | TextEngine


def takes_tokens(engine: Engine) -> TypeIs[TokenEngine]:
    """Whether the engine takes token ids; a `TextEngine` does not."""
    return not is_text_engine(engine)


def is_text_engine(backend: object) -> bool:
    """Whether a backend does what a `TokenEngine` leaves to the stages."""
    return hasattr(backend, "resolve") and hasattr(backend, "result")


def scores_tokens(engine: object) -> bool:
    """Whether the engine gives the log probabilities of continuations."""
    return hasattr(engine, "longest_scored")


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
    require_members(engine)


def require_members(engine: Any) -> None:
    """Raise `TypeError`, with the names, unless the engine has all that its protocol lists. Nothing
    is read: that may load a model's configuration.
    """
    kind, attributes = type(engine), getattr(engine, "__dict__", {})
    if hasattr(kind, "__getattr__"):
        return
    protocol: type = TokenEngine if takes_tokens(engine) else TextEngine
    names = get_protocol_members(protocol)
    absent = sorted(name for name in names if name not in attributes and not hasattr(kind, name))
    if absent:
        raise TypeError(
            f"the engine {engine.name!r} ({kind.__name__}) has no {', '.join(absent)}:"
            f" pipegen.engines.protocol.{protocol.__name__} says what each of them is"
        )
