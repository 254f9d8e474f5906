"""What a checkpoint's own processor of videos wants, and its tensors for frames that pipegen has
prepared.

transformers' processors of videos take torchvision for three steps: resizing and converting, which
pipegen has done before, and normalising. `load_video_processor` makes them with plain torch in the
place of the third, so that torchvision need not be installed. All else is the processor's own:
patches, grids, time stamps, and seconds of a grid.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from returns.result import Failure, Success

from pipegen.backends.checkpoint.families import family_of
from pipegen.backends.checkpoint.image_processors import (
    CannotProcess,
    spec_of_grid,
    translate_errors,
)
from pipegen.backends.checkpoint.locate import ModelFiles
from pipegen.core.errors import ContractError, UnsupportedMultimodal
from pipegen.core.foreign_calls import call_tokenizer
from pipegen.core.slots import Slot
from pipegen.engines.tokenizer import Tokenizer
from pipegen.media.frames import VideoSpec
from pipegen.records.results import PreparedImage

_MODULES = {
    "Qwen2VLVideoProcessor": "transformers.models.qwen2_vl.video_processing_qwen2_vl",
    "Qwen3VLVideoProcessor": "transformers.models.qwen3_vl.video_processing_qwen3_vl",
}
_SHARED = frozenset({"Qwen3VLVideoProcessor"})
"""Those whose budget of pixels is one of all frames together."""


def load_video_processor(files: ModelFiles, model_type: str) -> Any:
    """The checkpoint's processor of videos. Raises `CannotProcess`, with the reason, where it
    cannot be had.
    """
    name = family_of(model_type).video_processor
    with translate_errors():
        settings = files.json("video_preprocessor_config.json")
        settings = settings or files.json("preprocessor_config.json")
        named = settings.get("video_processor_type", name)
        if named != name:
            raise CannotProcess(f"its processor of videos is {named}, and not {name}")
        base = _class_of(name)
        kind: Any = type(name, (base,), {"rescale_and_normalize": _normalized})
        more = {} if files.revision is None else {"revision": files.revision}
        if base.__name__ != name:
            more |= _defaults_of_qwen2(settings)
        return kind.from_pretrained(files.source, **more)


def _class_of(name: str) -> Any:
    """The processor's class. The module of Qwen2-VL's imports torchvision; without it that of
    Qwen3-VL takes its place, which makes the same patches: pipegen has chosen frames and sizes,
    the only things in which they differ.
    """
    try:
        return getattr(importlib.import_module(_MODULES[name]), name)
    except (ImportError, RuntimeError):  # RuntimeError: a build for another torch
        other = "Qwen3VLVideoProcessor"
        return getattr(importlib.import_module(_MODULES[other]), other)


def _defaults_of_qwen2(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What Qwen2-VL's processor of videos has where the checkpoint's file says nothing."""
    from transformers import image_utils

    clip: Any = image_utils
    size = settings.get("size") or {"shortest_edge": 128 * 28**2, "longest_edge": 768 * 28**2}
    named = {"shortest_edge": "min_pixels", "longest_edge": "max_pixels"}
    size = {edge: settings.get(named.get(edge, "")) or area for edge, area in size.items()}
    others = {
        "patch_size": 14,
        "image_mean": clip.OPENAI_CLIP_MEAN,
        "image_std": clip.OPENAI_CLIP_STD,
    }
    return {
        "size": size,
        **{name: settings.get(name) or default for name, default in others.items()},
    }


def _normalized(
    self: Any,
    images: Any,
    do_rescale: bool,
    rescale_factor: float,
    do_normalize: bool,
    image_mean: object,
    image_std: object,
) -> Any:
    """As the processor's own, in plain torch: rescaled and normalised in one step."""
    import torch

    mean, std, rescale = self._fuse_mean_std_and_rescale_factor(
        do_normalize=do_normalize,
        image_mean=image_mean,
        image_std=image_std,
        do_rescale=do_rescale,
        rescale_factor=rescale_factor,
        device=images.device,
    )
    if do_normalize:
        floats = images.to(torch.float32)
        of = {"dtype": floats.dtype, "device": floats.device}
        shape = (-1, 1, 1)
        subtracted = floats.sub(torch.as_tensor(mean, **of).view(shape))
        return subtracted.div_(torch.as_tensor(std, **of).view(shape))
    return images * rescale_factor if rescale else images


def video_spec_from(video_processor: Any, config: object = None) -> VideoSpec:
    """What the processor wants of videos. Raises `CannotProcess` as `spec_of_grid` does."""
    frame = spec_of_grid(video_processor, config)
    with translate_errors():
        return VideoSpec(
            frame=frame,
            shared=type(video_processor).__name__ in _SHARED,
            fps=float(video_processor.fps or 2.0),
            min_frames=int(video_processor.min_frames),
            max_frames=int(video_processor.max_frames),
        )


def as_array(video: PreparedImage) -> object:
    """The frames, shape (frames, height, width, 3), of bytes."""
    import numpy as np

    shape = (len(video.times), video.height, video.width, 3)
    return np.frombuffer(bytearray(video.rgb), dtype=np.uint8).reshape(shape)


def metadata_of_video(video: PreparedImage) -> dict[str, object]:
    """The times of the frames as transformers and vLLM take them.

    They divide the number of a frame by the frames of a second. With one a second, the numbers are
    the times themselves, also where the frames are not evenly spread.
    """
    times = [float(time) for time in video.times]
    gap = (times[-1] - times[0]) / max(1, len(times) - 1) or 1.0
    return {
        "fps": 1.0,
        "frames_indices": times,
        "total_num_frames": len(times) * gap,
        "duration": len(times) * gap,
        "width": video.width,
        "height": video.height,
        "video_backend": "pipegen",
    }


def _called(processor: Any, videos: Sequence[PreparedImage], **more: object) -> dict[str, Any]:
    """What the processor makes of a text that is nothing but the places of these videos."""
    import torch
    from transformers.video_utils import VideoMetadata

    kind: Any = VideoMetadata
    arrays = [torch.tensor(as_array(video)).permute(0, 3, 1, 2) for video in videos]
    metadata = [kind(**metadata_of_video(video)) for video in videos]
    with translate_errors():
        outputs = processor(
            text=[processor.video_token * len(videos)],
            videos=arrays,
            video_metadata=metadata,
            do_resize=False,
            do_sample_frames=False,
            do_convert_rgb=False,
            cap_pixels_per_frame=False,
            return_tensors="pt",
            **more,
        )
    return dict(outputs)


def expand_video(
    processor: Any, video: PreparedImage, tokenizer: Tokenizer, token_id: int
) -> Slot[PreparedImage]:
    """The video with what the processor writes for it: its tokens (id `token_id`), and its time
    stamps where the family has some.
    """
    try:
        outputs = _called(processor, [video], return_text_replacement_offsets=True)
    except CannotProcess as raised:
        message = f"{type(processor).__name__} makes nothing of a video: {raised}"
        return Failure(UnsupportedMultimodal(message[:400]))
    written = str(outputs["text_replacement_offsets"][0][0]["replacement"])
    ids = call_tokenizer(tokenizer.encode, written)
    tokens = ids.count(token_id)
    if tuple(outputs["input_ids"][0].tolist()) != ids or tokens != video.tokens:
        return Failure(
            UnsupportedMultimodal(
                f"{type(processor).__name__} writes {tokens} tokens for a video of"
                f" {video.tokens}, or knows other tokens than the checkpoint's tokenizer"
            )
        )
    copies = written == processor.video_token * tokens
    return Success(dataclasses.replace(video, expansion=None if copies else written))


def video_inputs(processor: object, videos: Sequence[PreparedImage]) -> dict[str, Any]:
    """The model's inputs for these videos, in order, as PyTorch tensors: `pixel_values_videos`,
    `video_grid_thw`, and `second_per_grid_ts` where the family has it.

    Raises `ContractError` when the processor's grids are not those of the videos.
    """
    if not videos:
        return {}
    import torch

    outputs = _called(processor, videos)
    grids = tuple(tuple(grid) for grid in outputs["video_grid_thw"].tolist())
    if grids != tuple(video.grid for video in videos):
        raise ContractError(
            f"the processor's grids {grids} are not the prepared"
            f" {tuple(video.grid for video in videos)}: the videos were prepared for another model"
        )
    names = ("pixel_values_videos", "video_grid_thw", "second_per_grid_ts")
    return {name: torch.as_tensor(outputs[name]) for name in names if name in outputs}
