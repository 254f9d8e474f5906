"""What a checkpoint's own image processor wants, and its tensors for images that pipegen has prepared.

Works with the Pillow-based processors of transformers: `AutoImageProcessor.from_pretrained(folder, backend="pil")`. The processors themselves are given;
nothing is imported here but what they bring along.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from returns.result import Failure, Success

from pipegen.core.errors import ContractError, UnsupportedMultimodal
from pipegen.media.image import as_pil
from pipegen.media.sizes import ImageSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipegen.core.slots import Slot
    from pipegen.records.results import PreparedImage

__all__ = ["GRID_PROCESSORS", "LOADING", "CannotProcess", "grid_only", "pixel_inputs", "spec_from", "translate_errors"]

GRID_PROCESSORS = ("Qwen2VLImageProcessorPil", "Qwen2VLImageProcessor")
"""The processors that follow Qwen2-VL's rule of sizes (Qwen2-VL, 2.5-VL, 3-VL and what else uses them unchanged). Subclasses have rules of their own."""


LOADING = (ImportError, OSError, ValueError, TypeError, AttributeError, KeyError)
"""What loading a processor raises: for a package or a file that is missing, a class that is not there, a part of another kind, a token that the tokenizer
does not name, and a model type that is not known."""


class CannotProcess(ValueError):
    """A checkpoint's processor cannot be had, or cannot do what is asked of it; the message says why."""


@contextlib.contextmanager
def translate_errors(*kinds: type[Exception]) -> Iterator[None]:
    """Around a call of another project's code alone: these exceptions of it become `CannotProcess`; any other, and those of pipegen's own code, come through.

    >>> with translate_errors(KeyError):
    ...     {}["size"]
    Traceback (most recent call last):
    ...
    pipegen.backends.checkpoint.image_processors.CannotProcess: KeyError: 'size'
    """
    try:
        yield
    except kinds as raised:
        raise CannotProcess(f"{type(raised).__name__}: {raised}") from raised


def spec_from(image_processor: Any, config: Any = None) -> ImageSpec:
    """What the processor wants: `grid` with its figures for those of `GRID_PROCESSORS`, else `native`.

    `config` is the model's; where it names a patch and a merge size for its vision tower, these must be the processor's.
    Raises `CannotProcess` for a checkpoint whose processor and model disagree, or whose processor names no budget.
    """
    if type(image_processor).__name__ not in GRID_PROCESSORS:
        return ImageSpec(kind="native")
    size = image_processor.size
    low, high = _entry(size, "shortest_edge"), _entry(size, "longest_edge")
    if not low or not high:
        raise CannotProcess(f"the checkpoint's image processor takes size with shortest_edge and longest_edge (areas in pixels), not {size}")
    spec = ImageSpec(
        kind="grid",
        patch_size=image_processor.patch_size,
        merge_size=image_processor.merge_size,
        temporal_patch_size=image_processor.temporal_patch_size,
        min_pixels=int(low),
        max_pixels=int(high),
        resample=int(image_processor.resample),
    )
    vision = getattr(config, "vision_config", None)
    for name, own, named in (("patch_size", "patch_size", spec.patch_size), ("merge_size", "spatial_merge_size", spec.merge_size)):
        wanted = getattr(vision, own, named)
        if wanted != named:
            raise CannotProcess(f"the checkpoint's image processor has {name} {named}, its model {own} {wanted}: they belong to different models")
    return spec


def _entry(size: Any, name: str) -> Any:
    """An entry of a size, which is a dict in some versions and a record in others."""
    return size.get(name) if hasattr(size, "get") else getattr(size, name, None)


def pixel_inputs(image_processor: Any, images: Sequence[PreparedImage]) -> dict[str, Any]:
    """The model's inputs for these images, in order, as PyTorch tensors; an empty dict for no images.

    These are `pixel_values`, patches x (channels * temporal_patch_size * patch_size**2), and `image_grid_thw`, images x 3, of a `grid` processor.
    Nothing is resized again.
    Raises `ContractError` when the processor's grids are not those of the images.
    """
    if not images:
        return {}
    pil_images = [as_pil(image) for image in images]
    inputs = dict(image_processor(images=pil_images, do_resize=False, return_tensors="pt"))
    grids = tuple(tuple(grid) for grid in inputs["image_grid_thw"].tolist())
    prepared = tuple(image.grid for image in images)
    if grids != prepared:
        raise ContractError(f"the processor's grids {grids} are not the prepared {prepared}: the images were prepared for another model")
    patches = sum(math.prod(grid) for grid in grids)
    if inputs["pixel_values"].shape[0] != patches:
        raise ContractError(f"the processor made {inputs['pixel_values'].shape[0]} patches of grids that hold {patches}")
    return inputs


def grid_only(prepared: Slot[PreparedImage], engine: str) -> Slot[PreparedImage]:
    """The image where the model works on any size; `UnsupportedMultimodal` where its processor has sizes of its own, which `engine` would apply anew.

    >>> from pipegen.records.results import PreparedImage
    >>> grid_only(Success(PreparedImage(width=1, height=1, rgb=bytes(3), digest="")), "vllm").failure().message
    "vllm takes images of models that work on any size (the Qwen-VL families); this model's processor tiles or has a size of its own"
    """
    words = f"{engine} takes images of models that work on any size (the Qwen-VL families); this model's processor tiles or has a size of its own"

    def taken(image: PreparedImage) -> Slot[PreparedImage]:
        return Success(image) if image.grid is not None else Failure(UnsupportedMultimodal(words))

    return prepared.bind(taken)
