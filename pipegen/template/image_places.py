"""The images and videos of requests, made ready for the model: equal ones of a batch once, and on a few
threads. Tokens stand for them in a prompt.

>>> Placeholders("<|image_pad|>", "<|video_pad|>").of("video")
'<|video_pad|>'
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

from returns.result import Failure, Success

from pipegen.core.errors import BadImage, BadVideo, InvalidRequest
from pipegen.core.foreign_calls import EXHAUSTED, call_tokenizer, guard_result
from pipegen.core.functional import parallel
from pipegen.core.slots import Slot, is_ok
from pipegen.engines.model import TokenModel
from pipegen.engines.tokenizer import Tokenizer
from pipegen.records.messages import ImageSource, VideoSource, numbered
from pipegen.records.option_groups import VlmPreprocessOptions
from pipegen.records.results import PreparedImage, ResolvedRequest

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


_Image: TypeAlias = tuple[ImageSource, VlmPreprocessOptions]
Prepared: TypeAlias = Mapping[_Image, Slot[PreparedImage]]
"""Every image and video of a batch, once for each of the settings that are asked for."""


def prepare_images(requests: Sequence[ResolvedRequest], model: TokenModel) -> Prepared:
    """Every image and video of the jobs, prepared once for each of the settings that are asked for."""
    indexes: dict[_Image, int] = {}
    for resolved in requests:
        for index, source in numbered(resolved.request.sources):
            indexes.setdefault((source, _preprocess(resolved)), index)
    if not indexes:
        return {}

    def prepared(item: tuple[_Image, int]) -> Slot[PreparedImage]:
        (source, options), index = item
        kind = "video" if isinstance(source, VideoSource) else "image"
        return guard_result(
            lambda: model.prepare_image(source, options, index),
            lambda raised: InvalidRequest(
                f"{kind} {index} cannot be made ready: {raised.words}", incident=raised.incident
            ),
            only=EXHAUSTED,
        )

    return dict(zip(indexes, parallel(prepared, [*indexes.items()]), strict=True))


def images_of(resolved: ResolvedRequest, prepared: Prepared) -> Slot[tuple[PreparedImage, ...]]:
    """The request's images and videos, in order; the error of the first that could not be prepared."""
    images: list[PreparedImage] = []
    for index, source in numbered(resolved.request.sources):
        image = prepared[source, _preprocess(resolved)]
        if not is_ok(image):
            error = image.failure()
            return Failure(
                dataclasses.replace(error, index=index)
                if isinstance(error, (BadImage, BadVideo))
                else error
            )
        images.append(image.unwrap())
    return Success(tuple(images))


def _preprocess(resolved: ResolvedRequest) -> VlmPreprocessOptions:
    return resolved.options.preprocess or VlmPreprocessOptions()


def image_tokens(
    images: tuple[PreparedImage, ...],
    tokenizer: Tokenizer,
    image_placeholder: str | None,
    video_placeholder: str | None = None,
) -> str:
    """The added tokens that stand in a prompt for images and videos, one after another: they steer,
    and so text that looks like them has to stay text.

    >>> from pipegen.testing.toy import ToyTokenizer
    >>> image_tokens((), ToyTokenizer(), "<|image_pad|>")
    '<|image_pad|>'
    """
    placeholders = [
        placeholder for placeholder in (image_placeholder, video_placeholder) if placeholder
    ]
    if not placeholders or not images:
        return "\0".join(placeholders)
    ids = {
        token_id
        for image in images
        if image.expansion is not None
        for token_id in call_tokenizer(tokenizer.encode, image.expansion)
    }
    tokens = (
        sorted(token for token, token_id in tokenizer.control_tokens.items() if token_id in ids)
        if ids
        else []
    )
    return "\0".join(dict.fromkeys([*placeholders, *tokens]))
