"""What is known of a model without its weights, and what every engine on such a model tells of it."""

from __future__ import annotations

from typing import Any, Protocol

from immutabledict import immutabledict

from pipegen.backends.checkpoint.positions import Positions
from pipegen.core.errors import GenerationError
from pipegen.core.slots import Slot
from pipegen.engines.tokenizer import Renderer, Tokenizer
from pipegen.records.messages import ImageSource
from pipegen.records.options import VlmPreprocessOptions
from pipegen.records.results import PreparedImage, Prompt

__all__ = ["LightModel", "OnModel"]


class LightModel(Protocol):
    """What is known of a model without its weights: a `Checkpoint`, or a stand-in for it."""

    @property
    def identity(self) -> str: ...

    @property
    def has_weights(self) -> bool: ...

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
    def vocab_size(self) -> int | None: ...

    @property
    def generation_config(self) -> immutabledict[str, Any]: ...

    @property
    def images_unsupported_reason(self) -> str: ...

    @property
    def positions(self) -> Positions: ...

    def check_server_resize(self, prompt: Prompt) -> GenerationError | None:
        """What is wrong where the model's own processor would give an image of the prompt another size."""
        ...

    def prepare_image(self, source: ImageSource, options: VlmPreprocessOptions, index: int) -> Slot[PreparedImage]: ...


class OnModel:
    """The part of an `Engine` that its model tells: tokenizer, template and end tokens are the model's, whatever computes."""

    _checkpoint: Any
    """A `LightModel`, or more than that, as each engine declares it."""

    @property
    def identity(self) -> str:
        told: str = self._checkpoint.identity
        return told

    @property
    def tokenizer(self) -> Tokenizer:
        told: Tokenizer = self._checkpoint.tokenizer
        return told

    @property
    def renderer(self) -> Renderer:
        told: Renderer = self._checkpoint.renderer
        return told

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        told: tuple[int, ...] = self._checkpoint.eos_token_ids
        return told

    @property
    def bos_token(self) -> str | None:
        told: str | None = self._checkpoint.bos_token
        return told

    @property
    def image_placeholder(self) -> str | None:
        told: str | None = self._checkpoint.image_placeholder
        return told

    @property
    def generation_config(self) -> immutabledict[str, Any]:
        told: immutabledict[str, Any] = self._checkpoint.generation_config
        return told
