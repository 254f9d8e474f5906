"""What engines that read checkpoints have in common: the facts of the checkpoint, and the attached
plugins.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from immutabledict import immutabledict

from pipegen.backends.checkpoint.chat_jinja import rendering
from pipegen.backends.checkpoint.checkpoint import Checkpoint
from pipegen.backends.checkpoint.load_errors import adapter_digests_of, adapter_folders_of
from pipegen.core.errors import CallFailed
from pipegen.core.slots import Slot
from pipegen.engines.capabilities import ENGINES, Capabilities
from pipegen.engines.plugin import Pluggable
from pipegen.engines.session import answers
from pipegen.engines.settings import ModelLoadConfig, settings_of, that_change_answers
from pipegen.engines.tokenizer import Renderer, Tokenizer
from pipegen.records.messages import ImageSource
from pipegen.records.option_groups import VlmPreprocessOptions
from pipegen.records.results import Encoded, PreparedImage, Raw


class HasModelMetadata:
    """The part of a `TokenEngine` that it takes from its checkpoint: tokenizer, template and end
    tokens are the model's, whatever computes.
    """

    _checkpoint: Checkpoint

    @property
    def identity(self) -> str:
        return self._checkpoint.identity

    def _depends_on(self, values: Mapping[str, object]) -> dict[str, object]:
        """See `answers_depend_on`; `values` are the settings that change answers."""
        checkpoint = self._checkpoint
        load = checkpoint.load
        adapters = {"adapters": adapter_digests_of(load)} if load.adapters else {}
        return {"model": checkpoint.identity, **checkpoint.resolved(values), **adapters}

    @property
    def tokenizer(self) -> Tokenizer:
        return self._checkpoint.tokenizer

    @property
    def renderer(self) -> Renderer:
        return self._checkpoint.renderer

    @property
    def rewrites(self) -> tuple[str, ...]:
        """See `rewrites_of`. It is the same for every checkpoint, so no tokenizer is loaded."""
        return rendering().rewrites

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
    def framed_image_placeholder(self) -> str | None:
        """What the model's chat template writes for one image, for prompts of one's own."""
        return self._checkpoint.framed_image_placeholder

    @property
    def video_placeholder(self) -> str | None:
        return self._checkpoint.videos.placeholder

    @property
    def generation_config(self) -> immutabledict[str, Any]:
        return self._checkpoint.generation_config


class CheckpointEngine(HasModelMetadata, Pluggable):
    """An `Engine` on one checkpoint, but for how it computes: that is `open` (see
    `pipegen.engines.session`). Calls that run at the same time share the engine's steps.

    Raises `NoSuchModel` where the checkpoint is a folder that is not there.
    """

    name: str
    _kind: str
    """Its name among `ENGINES`, whatever a subclass is called."""
    tells_tokens = True
    """To be told of tokens as they are made costs little."""

    def __init__(self, load: ModelLoadConfig, checkpoint: Checkpoint | None = None) -> None:
        self._checkpoint = checkpoint or Checkpoint(load)

    def __repr__(self) -> str:
        try:
            dtype = self.dtype
        except (CallFailed, ImportError, OSError, ValueError):
            # the checkpoint cannot be read: its first use says why
            dtype = self._checkpoint.load.dtype
        return f"{type(self).__name__}({self._checkpoint.load.model!r}, dtype={dtype!r})"

    @property
    def model_name(self) -> str:
        """The model as the settings name it."""
        return str(self._checkpoint.load.model)

    @property
    def dtype(self) -> str:
        """What the model computes in: the same on every engine, also where `dtype="auto"` is asked
        (see `Checkpoint.dtype`).
        """
        return self._checkpoint.dtype

    @property
    def depends_on(self) -> Mapping[str, object]:
        """See `answers_depend_on`. Which engine computes is no part of it: they compute the same, and
        differ by rounding.
        """
        values = that_change_answers(settings_of(self._checkpoint.load)) | {"dtype": self.dtype}
        return self._depends_on(values)

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @cached_property
    def _capabilities(self) -> Capabilities:
        """Asked for several times for each row."""
        checkpoint, why_not = self._checkpoint, {"images": self._no_images_because}
        why_not["videos"] = why_not["images"] or self._no_videos_because
        return Capabilities(
            engine=self.name,
            honours=ENGINES[self._kind] - {kind for kind, why in why_not.items() if why},
            reason=why_not["images"],
            no_videos_because=why_not["videos"],
            vocab_size=checkpoint.vocab_size,
            adapters=tuple(filter(None, adapter_folders_of(checkpoint.load))),
            **self._limits,
        )

    @property
    def _no_images_because(self) -> str:
        """Why images are not taken; empty where they are."""
        return self._checkpoint.images_unsupported_reason

    @property
    def _no_videos_because(self) -> str:
        """Why a model that takes images takes no videos; empty where it does."""
        return self._checkpoint.videos.unsupported_reason

    @property
    def _limits(self) -> dict[str, Any]:
        """The limits that the engine has."""
        return {"context_length": self._checkpoint.context_length}

    def prepare_image(
        self, source: ImageSource, options: VlmPreprocessOptions, index: int
    ) -> Slot[PreparedImage]:
        return self._checkpoint.prepare_image(source, options, index)

    def generate(self, inputs: Sequence[Encoded]) -> list[Slot[Raw]]:
        """One slot for each input, in order. Raises `CallFailed` when the whole call failed; any
        other exception is a bug and comes through.
        """
        return answers(self, inputs)


def release(modules: Iterable[Callable[[], object]] | None = None) -> None:
    """Give what nobody holds any more back to the devices. A garbage collection goes through
    every object of the process; with weak references to `modules` it is made only where one of them
    still lives.
    """
    import torch

    if modules is None or any(module() is not None for module in modules):
        gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if torch.backends.mps.is_available():
        torch.mps.empty_cache()
