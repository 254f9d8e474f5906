"""What engines that read checkpoints have in common: the facts of the checkpoint, the attached plugins, and a batch as a stream read to its end."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Self

from pipegen.backends.checkpoint.checkpoint import Checkpoint
from pipegen.backends.checkpoint.metadata import OnModel
from pipegen.core.errors import CallFailed
from pipegen.core.slots import Slot
from pipegen.engines.plugin import Plugin
from pipegen.engines.protocol import RowDone, TokensMade
from pipegen.engines.settings import ModelLoadConfig
from pipegen.records.messages import ImageSource
from pipegen.records.options import VlmPreprocessOptions
from pipegen.records.results import Encoded, PreparedImage, Raw

__all__ = ["CheckpointEngine", "in_order"]


class CheckpointEngine(OnModel, ABC):
    """An `Engine` on one checkpoint, but for how it computes: that is `stream`.

    Raises `NoSuchModel` where the checkpoint is a folder that is not there.
    """

    _checkpoint: Checkpoint
    generates_by_stream = True
    """`generate` gives what `stream` does, read to its end; so who wants to know how far a call is may read the stream."""

    def __init__(self, load: ModelLoadConfig) -> None:
        self._checkpoint = Checkpoint(load)
        self._plugins: tuple[Plugin, ...] = ()

    def __repr__(self) -> str:
        try:
            dtype = self.dtype
        except (CallFailed, ImportError, OSError, ValueError):  # the checkpoint cannot be read: its first use says why
            dtype = self._checkpoint.load.dtype
        return f"{type(self).__name__}({self._checkpoint.load.model!r}, dtype={dtype!r})"

    @property
    def dtype(self) -> str:
        """What the model computes in: the same on every engine, also where `dtype="auto"` is asked (see `Checkpoint.dtype`)."""
        return self._checkpoint.dtype

    @property
    def plugins(self) -> tuple[Plugin, ...]:
        return self._plugins

    def prepare_image(self, source: ImageSource, options: VlmPreprocessOptions, index: int) -> Slot[PreparedImage]:
        return self._checkpoint.prepare_image(source, options, index)

    def with_plugin(self, plugin: Plugin) -> Self:
        other = copy.copy(self)  # it shares all that is loaded
        other._plugins = (*self._plugins, plugin)
        return other

    def generate(self, inputs: Sequence[Encoded]) -> list[Slot[Raw]]:
        """One slot for each input, in order. Raises `CallFailed` when the whole call failed; any other exception is a bug and comes through."""
        return in_order(self.stream(inputs))

    @abstractmethod
    def stream(self, inputs: Sequence[Encoded]) -> Iterator[TokensMade | RowDone]:
        """Tokens of each row in order, and one `RowDone` for each row. Raises as `generate` does."""


def in_order(events: Iterable[TokensMade | RowDone]) -> list[Slot[Raw]]:
    """The rows' answers, in the order of the call's inputs."""
    done = {event.row: event.slot for event in events if isinstance(event, RowDone)}
    return [done[position] for position in range(len(done))]
