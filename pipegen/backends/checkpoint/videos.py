"""What is known of a checkpoint's videos, and how they are prepared for it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from returns.result import Failure

from pipegen.backends.checkpoint.families import FAMILIES, family_of
from pipegen.backends.checkpoint.image_processors import CannotProcess, load_processor
from pipegen.core.distribution import MissingExtra, need
from pipegen.core.errors import ContractError, UnsupportedMultimodal
from pipegen.core.slots import Slot
from pipegen.records.messages import VideoSource
from pipegen.records.option_groups import VlmPreprocessOptions
from pipegen.records.results import PreparedImage

if TYPE_CHECKING:
    from pipegen.backends.checkpoint.checkpoint import Checkpoint
    from pipegen.media.frames import VideoSpec


class Videos:
    """The facts about videos of one checkpoint, each read when it is first asked for, and kept."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    @property
    def unsupported_reason(self) -> str:
        """Why videos are not taken; empty where they are, as far as the configuration tells."""
        checkpoint = self._checkpoint
        if checkpoint.images_unsupported_reason:
            return checkpoint.images_unsupported_reason
        if not family_of(checkpoint.model_type).video_processor:
            prepared = (name for name, family in FAMILIES.items() if family.video_processor)
            return (
                f"frames are prepared for models of type {', '.join(prepared)}, and this one"
                f" is of type {checkpoint.model_type}"
            )
        return "" if self.token_id is not None else "its config.json has no video_token_id"

    @cached_property
    def token_id(self) -> int | None:
        """The id that stands for a piece of a video in a prompt."""
        checkpoint = self._checkpoint
        if not (checkpoint.takes_images and family_of(checkpoint.model_type).video_processor):
            return None
        token_id: int | None = checkpoint.fact(
            "video_token_id", lambda: getattr(checkpoint.described, "video_token_id", None)
        )
        return token_id if isinstance(token_id, int) else None

    @cached_property
    def placeholder(self) -> str | None:
        """The control token that stands for one video in a rendered prompt; None where there is
        none.
        """
        tokenizer = self._checkpoint.tokenizer
        if self.token_id is None:
            return None
        token = str(tokenizer.source.convert_ids_to_tokens(self.token_id))
        return token if token in tokenizer.control_tokens else None

    @cached_property
    def _processor(self) -> Any:
        """The checkpoint's whole processor, with its part for videos. Raises `CannotProcess` where
        it cannot be had.
        """
        from pipegen.backends.checkpoint.video_processors import load_video_processor

        need("transformers", "hf", "reading videos")
        checkpoint, kind = self._checkpoint, self._checkpoint.model_type
        processor = load_processor(
            checkpoint.files, kind, trust_remote_code=checkpoint.load.trust_remote_code
        )
        processor.video_processor = load_video_processor(checkpoint.files, kind)
        return processor

    @cached_property
    def spec(self) -> VideoSpec:
        """What videos have to become for this model. Raises `CannotProcess` where that cannot be
        known.
        """
        from pipegen.backends.checkpoint.video_processors import video_spec_from

        return video_spec_from(self._processor.video_processor, self._checkpoint.config)

    @cached_property
    def _no_processor_because(self) -> str:
        """Why videos cannot be prepared with the packages that are here; empty where they can."""
        try:
            with self._checkpoint.lock:  # videos may be prepared side by side
                _ = self.spec
        except (CannotProcess, MissingExtra) as raised:
            model = self._checkpoint.load.model
            return f"the processor of videos of {model!r} cannot be used: {raised}"[:600]
        return ""

    def prepare(
        self, source: VideoSource, options: VlmPreprocessOptions, index: int
    ) -> Slot[PreparedImage]:
        """The frames of one video as this model wants them. Raises `ContractError` for a source
        whose bytes are not loaded.
        """
        if not source.contents:
            raise ContractError(f"{source!r} was not loaded: an engine takes videos as bytes")
        because = self.unsupported_reason or self._no_processor_because
        if because:
            return Failure(UnsupportedMultimodal(because))
        try:
            if not source.frames:
                need("av", "video", "reading a video")
        except MissingExtra as missing:
            hint = "install it, or give the frames as images with their times"
            return Failure(UnsupportedMultimodal(str(missing), hint=hint))
        from pipegen.backends.checkpoint.video_processors import expand_video
        from pipegen.media.video import prepare_video

        return prepare_video(source, self.spec, options, index).bind(
            lambda video: expand_video(
                self._processor, video, self._checkpoint.tokenizer, self.token_id or 0
            )
        )

    def inputs(self, videos: Sequence[PreparedImage]) -> dict[str, Any]:
        """What the model gets for these videos, in order."""
        from pipegen.backends.checkpoint.video_processors import video_inputs

        return video_inputs(self._processor, videos)
