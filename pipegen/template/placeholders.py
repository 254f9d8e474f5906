"""The tokens that stand for images and for videos in a prompt.

>>> Placeholders("<|image_pad|>", "<|video_pad|>").of("video")
'<|video_pad|>'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from pipegen.engines.tokenizer import Tokenizer
from pipegen.records.results import PreparedImage

Kind = Literal["image", "video"]


def kind_of(image: PreparedImage) -> Kind:
    """What it is."""
    return "video" if image.is_video else "image"


class Placeholders(NamedTuple):
    """The control token for an image and that for a video; empty where there is none."""

    image: str = ""
    video: str = ""

    def of(self, kind: Kind) -> str:
        """The token of one kind."""
        return self.video if kind == "video" else self.image

    def ids(self, tokenizer: Tokenizer) -> Mapping[str, int]:
        """The ids of those that there are."""
        return {
            kind: tokenizer.control_tokens[token]
            for kind, token in (("image", self.image), ("video", self.video))
            if token
        }

    def counts(self, images: Sequence[PreparedImage]) -> tuple[tuple[Kind, int], ...]:
        """How many there are of each kind."""
        videos = sum(image.is_video for image in images)
        return ("image", len(images) - videos), ("video", videos)
