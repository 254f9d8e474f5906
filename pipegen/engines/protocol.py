"""What an engine is to the rest of pipegen.

A `Backend` performs calls: encoded prompts in, one slot of generated ids for each out. An `Engine` also knows its model: it renders, tokenises and
tells its limits, all before (and without) loading weights.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

from immutabledict import immutabledict

from pipegen.core.pipe import Backend
from pipegen.core.slots import Slot
from pipegen.engines.capabilities import Capabilities
from pipegen.engines.plugin import Plugin
from pipegen.engines.tokenizer import Renderer, Tokenizer
from pipegen.records.fields import record
from pipegen.records.messages import ImageSource
from pipegen.records.options import VlmPreprocessOptions
from pipegen.records.results import Encoded, PreparedImage, Raw

__all__ = ["AwaitedBackend", "Backend", "Engine", "RowDone", "StreamBackend", "TextMade", "TokensMade"]


@record
class TokensMade:
    """While a call streams: row `row` (its position in the call's inputs) made these tokens."""

    row: int
    token_ids: tuple[int, ...]
    text: str | None = None
    """The text that is final with them; None where the engine does not decode, and who reads the stream does."""


@record
class RowDone:
    """While a call streams: row `row` is finished, with this answer."""

    row: int
    slot: Slot[Raw]


@record
class TextMade:
    """While a call streams, on an engine that decodes by itself: row `row` brought this text, which is final, and this reasoning."""

    row: int
    text: str
    reasoning: str = ""


@runtime_checkable
class StreamBackend(Backend, Protocol):
    """Also tells of tokens as they come."""

    def stream(self, inputs: Sequence[Encoded]) -> Iterator[TokensMade | RowDone]:
        """Tokens of each row in order, and one `RowDone` for each row. Raises `CallFailed` as `generate` does."""
        ...


@runtime_checkable
class AwaitedBackend(Backend, Protocol):
    """Natively asynchronous: `arun` awaits it instead of using a thread."""

    async def agenerate(self, inputs: Sequence[Encoded]) -> Sequence[Slot[Raw]]: ...

    def astream(self, inputs: Sequence[Encoded]) -> AsyncIterator[TokensMade | RowDone]: ...


class Engine(StreamBackend, Protocol):
    """An engine with its model: what a `Route` is built on. Everything but `generate` and `stream` works without weights."""

    @property
    def capabilities(self) -> Capabilities: ...

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

    def prepare_image(self, source: ImageSource, options: VlmPreprocessOptions, index: int) -> Slot[PreparedImage]:
        """Decode, turn and resize one image (whose bytes are loaded) as this model wants it; pure."""
        ...

    def with_plugin(self, plugin: Plugin) -> Engine:
        """The same engine (sharing its weights) with a plugin attached."""
        ...

    @property
    def plugins(self) -> tuple[Plugin, ...]: ...

    def close(self) -> None:
        """Release weights and memory; the engine loads again when it is needed again."""
        ...
