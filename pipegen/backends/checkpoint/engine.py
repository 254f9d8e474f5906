"""What engines that read checkpoints have in common: the facts of the checkpoint, the attached
plugins, and a batch as a stream read to its end.
"""

from __future__ import annotations

import contextlib
import copy
import gc
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping, Sequence
from typing import Any, Self

from immutabledict import immutabledict

from pipegen.backends.checkpoint.checkpoint import Checkpoint
from pipegen.core.errors import CallFailed
from pipegen.core.slots import Slot
from pipegen.engines.plugin import Plugin
from pipegen.engines.protocol import RowDone, TokensMade
from pipegen.engines.settings import ModelLoadConfig, settings_of, that_change_answers
from pipegen.engines.tokenizer import Renderer, Tokenizer
from pipegen.records.messages import ImageSource
from pipegen.records.options import VlmPreprocessOptions
from pipegen.records.results import Encoded, PreparedImage, Raw

__all__ = ["CheckpointEngine", "HasModelMetadata", "in_order", "release"]


class HasModelMetadata:
    """The part of a `TokenEngine` that it takes from its checkpoint: tokenizer, template and end
    tokens are the model's, whatever computes.
    """

    _checkpoint: Checkpoint

    @property
    def identity(self) -> str:
        return self._checkpoint.identity

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


class CheckpointEngine(HasModelMetadata, ABC):
    """An `Engine` on one checkpoint, but for how it computes: that is `_run` and `_arun`.

    Raises `NoSuchModel` where the checkpoint is a folder that is not there.
    """

    generates_by_stream = True
    """`generate` gives what `stream` does, read to its end; so who wants to know how far a call is
    may read the stream.
    """

    def __init__(self, load: ModelLoadConfig, checkpoint: Checkpoint | None = None) -> None:
        self._checkpoint = checkpoint or Checkpoint(load)
        self.plugins: tuple[Plugin, ...] = ()

    def __repr__(self) -> str:
        try:
            dtype = self.dtype
        except (CallFailed, ImportError, OSError, ValueError):
            # the checkpoint cannot be read: its first use says why
            dtype = self._checkpoint.load.dtype
        return f"{type(self).__name__}({self._checkpoint.load.model!r}, dtype={dtype!r})"

    @property
    def dtype(self) -> str:
        """What the model computes in: the same on every engine, also where `dtype="auto"` is asked
        (see `Checkpoint.dtype`).
        """
        return self._checkpoint.dtype

    @property
    def depends_on(self) -> Mapping[str, Any]:
        """See `DependsOn`. Which engine computes is no part of it: they compute the same, and
        differ by rounding.
        """
        values = that_change_answers(settings_of(self._checkpoint.load)) | {"dtype": self.dtype}
        return {"model": self.identity, **self._checkpoint.resolved(values)}

    def prepare_image(
        self, source: ImageSource, options: VlmPreprocessOptions, index: int
    ) -> Slot[PreparedImage]:
        return self._checkpoint.prepare_image(source, options, index)

    def with_plugin(self, plugin: Plugin) -> Self:
        other = copy.copy(self)  # it shares all that is loaded
        other.plugins = (*self.plugins, plugin)
        return other

    def generate(self, inputs: Sequence[Encoded]) -> list[Slot[Raw]]:
        """One slot for each input, in order. Raises `CallFailed` when the whole call failed; any
        other exception is a bug and comes through.
        """
        return in_order(self._run(inputs, text=False))

    def stream(self, inputs: Sequence[Encoded]) -> Generator[TokensMade | RowDone, None, None]:
        """Tokens of each row as they are made, and one `RowDone` for each row as soon as it ends.
        Raises as `generate` does.
        """
        return self._run(inputs, text=True)

    async def agenerate(self, inputs: Sequence[Encoded]) -> list[Slot[Raw]]:
        """As `generate`, for asynchronous code: calls that run at the same time share the engine's
        steps, and a cancelled one takes part in no further step.
        """
        async with contextlib.aclosing(self._arun(inputs, text=False)) as events:
            return in_order([event async for event in events])

    def astream(self, inputs: Sequence[Encoded]) -> AsyncGenerator[TokensMade | RowDone, None]:
        """As `stream`, for asynchronous code; see `agenerate`."""
        return self._arun(inputs, text=True)

    @abstractmethod
    def _run(
        self, inputs: Sequence[Encoded], *, text: bool
    ) -> Generator[TokensMade | RowDone, None, None]:
        """The rows' events; with `text`, each token with the text that is final."""

    @abstractmethod
    def _arun(
        self, inputs: Sequence[Encoded], *, text: bool
    ) -> AsyncGenerator[TokensMade | RowDone, None]:
        """As `_run`, for asynchronous code."""


def in_order(events: Iterable[TokensMade | RowDone]) -> list[Slot[Raw]]:
    """The rows' answers, in the order of the call's inputs."""
    done = {event.row: event.slot for event in events if isinstance(event, RowDone)}
    return [done[position] for position in range(len(done))]


def release() -> None:
    """Give what nobody holds any more back to the devices."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if torch.backends.mps.is_available():
        torch.mps.empty_cache()
