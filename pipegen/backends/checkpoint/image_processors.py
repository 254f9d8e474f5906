"""What a checkpoint's own image processor wants, and its tensors for images that pipegen has
prepared.

Works with the Pillow-based processors of transformers: `AutoImageProcessor.from_pretrained(folder,
backend="pil")`. The processors themselves are given; nothing is imported here but what they bring
along.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from returns.result import Failure, Success

from pipegen.backends.checkpoint.locate import ModelFiles
from pipegen.core.errors import ContractError, UnsupportedMultimodal
from pipegen.core.foreign_calls import attempt, call_tokenizer
from pipegen.core.slots import Slot
from pipegen.engines.tokenizer import Tokenizer
from pipegen.media.image import as_pil
from pipegen.media.sizes import ImageSpec
from pipegen.records.results import PreparedImage

GRID_PROCESSORS = ("Qwen2VLImageProcessorPil", "Qwen2VLImageProcessor")
"""The processors that follow Qwen2-VL's rule of sizes (Qwen2-VL, 2.5-VL, 3-VL and what else uses
them unchanged). Subclasses have rules of their own.
"""


class CannotProcess(ValueError):
    """A checkpoint's processor cannot be had, or cannot do what is asked of it; the message says
    why.
    """


@contextlib.contextmanager
def translate_errors(kinds: tuple[type[Exception], ...] = (Exception,)) -> Iterator[None]:
    """Around a call of another project's code alone: these exceptions of it become `CannotProcess`,
    and any other comes through.

    Loading a processor may raise any, so that is the default: it is code of other projects, on a
    file that may hold anything.

    >>> with translate_errors((KeyError,)):
    ...     {}["size"]
    Traceback (most recent call last):
    ...
    pipegen.backends.checkpoint.image_processors.CannotProcess: KeyError: 'size'
    """
    try:
        yield
    except kinds as raised:
        raise CannotProcess(f"{type(raised).__name__}: {raised}") from raised


def spec_from(image_processor: object, config: object = None) -> ImageSpec:
    """What the processor wants: `grid` with its figures for those of `GRID_PROCESSORS`, else
    `native`.

    `config` is the model's; where it names a patch and a merge size for its vision tower, these
    must be the processor's. Raises `CannotProcess` for a checkpoint whose processor and model
    disagree, or whose processor names no budget.
    """
    if type(image_processor).__name__ not in GRID_PROCESSORS:
        return ImageSpec(kind="native")
    return spec_of_grid(image_processor, config)


def names_grid(files: ModelFiles) -> bool:
    """Whether the files of a model's processor name one of `GRID_PROCESSORS`. Files that are not in
    order name none: transformers refuses them where the processor is loaded.
    """

    def named() -> bool:
        own, whole = map(files.json, ("preprocessor_config.json", "processor_config.json"))
        kind = str(own.get("image_processor_type")).removesuffix("Fast")
        return kind in GRID_PROCESSORS and "auto_map" not in own and "image_processor" not in whole

    return attempt(named).value_or(False)


def spec_of_grid(image_processor: Any, config: object = None) -> ImageSpec:
    """The figures of a processor that takes any size, of images or of videos. Raises as `spec_from`
    does.
    """
    size = image_processor.size
    low, high = _entry(size, "shortest_edge"), _entry(size, "longest_edge")
    if not low or not high:
        raise CannotProcess(
            "the checkpoint's image processor takes size with shortest_edge and longest_edge"
            f" (areas in pixels), not {size}"
        )
    with translate_errors():
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
    for name, key, named in (
        ("patch_size", "patch_size", spec.patch_size),
        ("merge_size", "spatial_merge_size", spec.merge_size),
    ):
        value = getattr(vision, key, named)
        if value != named:
            raise CannotProcess(
                f"the checkpoint's image processor has {name} {named}, its model {key} {value}:"
                " they belong to different models"
            )
    return spec


def check_pixels(image_processor: Any, spec: ImageSpec) -> None:
    """Raise `CannotProcess` where a `grid` processor cannot make finite pixels of an image: its
    mean or its scale may be of any type.
    """
    from PIL import Image

    with translate_errors():
        outputs = image_processor(
            images=[Image.new("RGB", (spec.factor, spec.factor))],
            do_resize=False,
            return_tensors="pt",
        )
        finite = bool(outputs["pixel_values"].isfinite().all())
    if not finite:
        raise CannotProcess(
            "it makes pixels that are no finite numbers: see image_mean, image_std and"
            " rescale_factor in preprocessor_config.json"
        )


def _entry(size: Any, name: str) -> Any:
    """An entry of a size, which is a dict in some versions and a record in others."""
    return size.get(name) if hasattr(size, "get") else getattr(size, name, None)


def pixel_inputs(image_processor: Any, images: Sequence[PreparedImage]) -> dict[str, object]:
    """The model's inputs for these images, in order, as PyTorch tensors; an empty dict for no
    images.

    These are `pixel_values`, patches x (channels * temporal_patch_size * patch_size**2), and
    `image_grid_thw`, images x 3, of a `grid` processor. Nothing is resized again. Raises
    `ContractError` when the processor's grids are not those of the images.
    """
    if not images:
        return {}
    pil_images = [as_pil(image) for image in images]
    inputs = dict(image_processor(images=pil_images, do_resize=False, return_tensors="pt"))
    grids = tuple(tuple(grid) for grid in inputs["image_grid_thw"].tolist())
    prepared = tuple(image.grid for image in images)
    if grids != prepared:
        raise ContractError(
            f"the processor's grids {grids} are not the prepared {prepared}: the images were"
            " prepared for another model"
        )
    patches = sum(math.prod(grid) for grid in grids)
    if inputs["pixel_values"].shape[0] != patches:
        raise ContractError(
            f"the processor made {inputs['pixel_values'].shape[0]} patches of grids that hold"
            f" {patches}"
        )
    return inputs


def grid_only(prepared: Slot[PreparedImage], engine: str) -> Slot[PreparedImage]:
    """The image where the model works on any size; `UnsupportedMultimodal` where its processor has
    sizes of its own, which `engine` would apply again.

    >>> from pipegen.records.results import PreparedImage
    >>> grid_only(
    ...     Success(PreparedImage(width=1, height=1, rgb=bytes(3), digest="")), "vllm"
    ... ).failure().message
    "vllm takes images of models that work on any size (the Qwen-VL families); this model's processor tiles or has a size of its own"
    """
    message = (
        f"{engine} takes images of models that work on any size (the Qwen-VL families); this"
        " model's processor tiles or has a size of its own"
    )

    def checked(image: PreparedImage) -> Slot[PreparedImage]:
        return Success(image) if image.grid is not None else Failure(UnsupportedMultimodal(message))

    return prepared.bind(checked)


IMAGE_MARKS = ("mm_token_type_ids", "token_type_ids")
"""What models call the input that is 1 where a token is a piece of an image, 2 where it is one of a
video, and 0 elsewhere.
"""
SIZES = 1024
"""Sizes of images for which it is remembered what a processor writes."""
_OF_TEXT = ("input_ids", "attention_mask", "text_replacement_offsets")
_CALLING = (
    ImportError,
    NotImplementedError,
    TypeError,
    ValueError,
    AttributeError,
    KeyError,
    ZeroDivisionError,
)
"""What calling a processor raises: where it has no rule for an image's text, wants more than text
and images, or does not take an image's shape.
"""


class ImageInputs(NamedTuple):
    """What a model gets for images and videos: tensors by name, and for each of `IMAGE_MARKS` that
    it may want, the ids that are marked, each with its mark.
    """

    tensors: Mapping[str, Any]
    marked: Mapping[str, Mapping[int, int]]


def load_processor(files: ModelFiles, model_type: str, *, trust_remote_code: bool = False) -> Any:
    """The checkpoint's processor for text and images, on Pillow; its parts for video and sound,
    which need other packages, are left out.

    Raises `CannotProcess`, with the reason, where there is none or where it cannot be had.
    """
    import transformers

    hf: Any = transformers  # its own annotations are partial
    source, revision = files
    where: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    named, remote = _named(files)
    if remote and trust_remote_code:
        with translate_errors():
            return hf.AutoProcessor.from_pretrained(source, backend="pil", **where)
    kind = _kind(named, model_type)
    parts = {"tokenizer": hf.AutoTokenizer, "image_processor": hf.AutoImageProcessor}
    backend = {"tokenizer": {}, "image_processor": {"backend": "pil"}}
    bare = _for_images(kind)
    with translate_errors():
        loaded_parts = [
            parts[name].from_pretrained(source, **backend[name], **where) if name in parts else None
            for name in kind.get_attributes()
        ]
        settings, _ = kind.get_processor_dict(
            source, **({} if revision is None else {"revision": revision})
        )
        processor = bare.from_args_and_dict(loaded_parts, settings)
    # a saved tokenizer may bring them along; nothing changes it from here on
    processor.tokenizer.backend_tokenizer.no_truncation()
    processor.tokenizer.backend_tokenizer.no_padding()
    return processor


def _named(files: ModelFiles) -> tuple[str | None, bool]:
    """The class that the checkpoint names for its processor, and whether that is code of its
    own.
    """
    for name in ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json"):
        with translate_errors():
            settings = files.json(name)
        named, remote = (
            settings.get("processor_class"),
            "AutoProcessor" in settings.get("auto_map", {}),
        )
        if named or remote:
            return named, remote
    return None, False


def _kind(named: str | None, model_type: str) -> Any:
    import transformers
    from transformers.models.auto import processing_auto

    auto: Any = processing_auto
    name = named or auto.PROCESSOR_MAPPING_NAMES.get(model_type)
    # a class that stands in for one whose package is missing raises when it is looked at
    with translate_errors():
        kind = auto.processor_class_from_name(name) if isinstance(name, str) else None
        usable = kind is not None and hasattr(kind, "get_attributes")
    if not usable:
        raise CannotProcess(
            f"transformers {transformers.__version__} has no processor for text and images of"
            f" {model_type} ({name})"
        )
    return kind


def _for_images(kind: Any) -> Any:
    """The class, content without the parts that images do not need."""

    def check(self: Any, name: str, part: Any) -> Any:
        return None if part is None else kind.check_argument_for_proper_class(self, name, part)

    return type(kind.__name__, (kind,), {"check_argument_for_proper_class": check})


def _called(processor: Any, images: Sequence[PreparedImage], **more: Any) -> dict[str, Any]:
    """What the processor makes of a text that is nothing but the places of these images. Raises
    `CannotProcess` where it cannot.
    """
    text, pil_images = [processor.image_token * len(images)], [as_pil(image) for image in images]
    with translate_errors(_CALLING):
        outputs = processor(text=text, images=pil_images, add_special_tokens=False, **more)
    return dict(outputs)


def _written(outputs: Mapping[str, Any]) -> tuple[str, tuple[int, ...]]:
    """What the processor wrote for its one image, and the ids of the whole. Raises `CannotProcess`
    where it does not tell.
    """
    offsets, ids = outputs.get("text_replacement_offsets"), outputs.get("input_ids")
    if not offsets or not offsets[0] or ids is None:
        raise CannotProcess("it does not say what it replaced")
    return str(offsets[0][0]["replacement"]), tuple(int(token_id) for token_id in ids[0])


def expand(
    processor: object, image: PreparedImage, tokenizer: Tokenizer, image_token_id: int | None
) -> Slot[PreparedImage]:
    """The image with what the processor writes for it; `tokens` are those that its features take
    the place of (id `image_token_id`).

    Fails with `UnsupportedMultimodal` where the processor cannot tell, changes the text elsewhere,
    or knows other tokens than `tokenizer`. So it does for inputs that depend on the whole prompt.
    """
    name = type(processor).__name__
    placeholder = getattr(processor, "image_token", None)
    if not isinstance(placeholder, str) or placeholder not in tokenizer.control_tokens:
        return Failure(
            UnsupportedMultimodal(
                f"{name} has no control token that stands for an image in a prompt"
                f" ({placeholder!r})"
            )
        )
    try:
        outputs = _called(processor, [image], return_text_replacement_offsets=True)
        written, ids = _written(outputs)
    except CannotProcess as raised:
        message = (
            f"{name} does not tell what it writes for an image of {image.width}x{image.height}"
            f" pixels ({raised})"
        )
        return Failure(UnsupportedMultimodal(message[:400]))
    refusal = _refusal(processor, outputs, ids, call_tokenizer(tokenizer.encode, written))
    tokens = ids.count(image_token_id) if image_token_id is not None else 0
    if refusal is None and not tokens:
        refusal = f"writes no token of the model's own (id {image_token_id}) for an image"
    if refusal is not None:
        return Failure(UnsupportedMultimodal(f"{name} {refusal}, which is not supported"))
    copies = written == placeholder * tokens
    return Success(dataclasses.replace(image, tokens=tokens, expansion=None if copies else written))


class Expansions:
    """`expand`, asked once for each size of an image: what a processor writes depends on the size
    alone, and `native_inputs` sees that it does.
    """

    def __init__(self, processor: object, tokenizer: Tokenizer, image_token_id: int | None) -> None:
        self._processor, self._tokenizer, self._image_token_id = (
            processor,
            tokenizer,
            image_token_id,
        )
        self._known: dict[tuple[int, int], tuple[int, str | None]] = {}

    def __call__(self, image: PreparedImage) -> Slot[PreparedImage]:
        cached = self._known.get((image.width, image.height))
        if cached is not None:
            return Success(dataclasses.replace(image, tokens=cached[0], expansion=cached[1]))
        return expand(self._processor, image, self._tokenizer, self._image_token_id).map(
            self._remembered
        )

    def _remembered(self, image: PreparedImage) -> PreparedImage:
        if len(self._known) >= SIZES:
            self._known.clear()
        self._known[image.width, image.height] = (image.tokens, image.expansion)
        return image


def _refusal(
    processor: Any, outputs: Mapping[str, Any], ids: tuple[int, ...], plain_ids: tuple[int, ...]
) -> str | None:
    if ids != plain_ids:
        return (
            "changes the text beside its images, or knows other tokens than the checkpoint's"
            " tokenizer"
        )
    unknown = sorted(
        set(outputs) - {*_OF_TEXT, *IMAGE_MARKS, *processor.image_processor.model_input_names}
    )
    if unknown:
        return f"makes {', '.join(unknown)}, which depends on the whole prompt"
    for name, rows in outputs.items():
        if name in IMAGE_MARKS:
            marks = [int(mark) for mark in rows[0]]
            if not set(marks) <= {0, 1} or _with(ids, marks, 1) & _with(ids, marks, 0):
                return f"marks the same token now as an image's and now not ({name})"
    return None


def _with(ids: Sequence[int], marks: Sequence[int], mark: int) -> frozenset[int]:
    return frozenset(
        token_id for token_id, token_mark in zip(ids, marks, strict=True) if token_mark == mark
    )


def native_inputs(
    processor: object, images: Sequence[PreparedImage], image_token_id: int | None
) -> ImageInputs:
    """The model's inputs for these images, in order, as the processor makes them; resized, cut and
    normalised by its own rules.

    Raises `ContractError` where it writes more or fewer tokens of the model's own (id
    `image_token_id`) than the images were prepared with.
    """
    outputs = _called(processor, images, return_tensors="pt")
    ids = outputs["input_ids"][0].tolist()
    written, prepared = ids.count(image_token_id), sum(image.tokens for image in images)
    if written != prepared:
        raise ContractError(
            f"the processor writes {written} image tokens for images that were prepared with"
            f" {prepared}"
        )
    marked = {
        name: dict.fromkeys(_with(ids, outputs[name][0].tolist(), 1), 1)
        for name in IMAGE_MARKS
        if name in outputs
    }
    return ImageInputs(
        {name: value for name, value in outputs.items() if name not in (*_OF_TEXT, *IMAGE_MARKS)},
        marked,
    )
