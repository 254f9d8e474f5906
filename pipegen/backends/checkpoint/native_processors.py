"""Processors with sizes of their own (they tile, frame or squeeze an image): what they write for one, and the model's inputs.

Nothing is known here of any family. The checkpoint's own processor is called, on its placeholder and an image and nothing else, and what it wrote in the
placeholder's stead is read off; what cannot be read off so is refused with the reason.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from returns.result import Failure, Success

from pipegen.backends.checkpoint.image_processors import LOADING, CannotProcess, translate_errors
from pipegen.core.border import of_tokenizer
from pipegen.core.errors import ContractError, UnsupportedMultimodal
from pipegen.media.image import as_pil

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pipegen.core.slots import Slot
    from pipegen.engines.tokenizer import Tokenizer
    from pipegen.records.results import PreparedImage

__all__ = ["IMAGE_MARKS", "Expansions", "ImageInputs", "expand", "load_processor", "native_inputs"]

IMAGE_MARKS = ("mm_token_type_ids", "token_type_ids")
"""What models call the input that is 1 where a token is a piece of an image, and 0 elsewhere."""
SIZES = 1024
"""Sizes of images for which it is remembered what a processor writes."""
_OF_TEXT = ("input_ids", "attention_mask", "text_replacement_offsets")
_CALLING = (ImportError, NotImplementedError, TypeError, ValueError, AttributeError, KeyError, ZeroDivisionError)
"""What calling a processor raises: where it has no rule for an image's text, wants more than text and images, or does not take an image's shape."""


class ImageInputs(NamedTuple):
    """What a model gets for images: tensors by name, and for each of `IMAGE_MARKS` that it may want, the ids that are marked."""

    tensors: Mapping[str, Any]
    marked: Mapping[str, frozenset[int]]


def load_processor(source: str, model_type: str, *, revision: str | None = None, trust_remote_code: bool = False) -> Any:
    """The checkpoint's processor for text and images, on Pillow; its parts for video and sound, which need other packages, are left out.

    Raises `CannotProcess`, with the reason, where there is none or where it cannot be had.
    """
    from transformers import AutoImageProcessor, AutoProcessor, AutoTokenizer

    where: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    image, text, whole = (_untyped(kind) for kind in (AutoImageProcessor, AutoTokenizer, AutoProcessor))
    named, remote = _named(source, revision)
    if remote and trust_remote_code:
        with translate_errors(*LOADING):
            return whole.from_pretrained(source, backend="pil", **where)
    kind = _kind(named, model_type)
    parts = {"tokenizer": text, "image_processor": image}
    backend = {"tokenizer": {}, "image_processor": {"backend": "pil"}}
    bare = _for_images(kind)
    with translate_errors(*LOADING):
        made = [parts[name].from_pretrained(source, **backend[name], **where) if name in parts else None for name in kind.get_attributes()]
        settings, _ = kind.get_processor_dict(source, **({} if revision is None else {"revision": revision}))
        processor = bare.from_args_and_dict(made, settings)
    processor.tokenizer.backend_tokenizer.no_truncation()  # a saved tokenizer may bring them along; nothing changes it from here on
    processor.tokenizer.backend_tokenizer.no_padding()
    return processor


def _untyped(kind: Any) -> Any:
    """transformers' own annotations are partial."""
    return kind


def _named(source: str, revision: str | None) -> tuple[str | None, bool]:
    """The class that the checkpoint names for its processor, and whether that is code of its own."""
    from transformers.utils.hub import cached_file

    for name in ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json"):
        with translate_errors(*LOADING):
            found = cached_file(source, name, revision=revision, _raise_exceptions_for_missing_entries=False)
        said = {} if found is None else json.loads(Path(found).read_text(encoding="utf-8"))
        if said.get("processor_class") or "AutoProcessor" in said.get("auto_map", {}):
            return said.get("processor_class"), "AutoProcessor" in said.get("auto_map", {})
    return None, False


def _kind(named: str | None, model_type: str) -> Any:
    import transformers
    from transformers.models.auto import processing_auto

    auto = _untyped(processing_auto)
    name = named or auto.PROCESSOR_MAPPING_NAMES.get(model_type)
    with translate_errors(*LOADING):  # a class that stands in for one whose package is missing raises when it is looked at
        kind = auto.processor_class_from_name(name) if isinstance(name, str) else None
        usable = kind is not None and hasattr(kind, "get_attributes")
    if not usable:
        raise CannotProcess(f"transformers {transformers.__version__} has no processor for text and images of {model_type} ({name})")
    return kind


def _for_images(kind: Any) -> Any:
    """The class, content without the parts that images do not need."""

    def check(self: Any, name: str, part: Any) -> Any:
        return None if part is None else kind.check_argument_for_proper_class(self, name, part)

    return type(kind.__name__, (kind,), {"check_argument_for_proper_class": check})


def _called(processor: Any, images: Sequence[PreparedImage], **more: Any) -> dict[str, Any]:
    """What the processor makes of a text that is nothing but the places of these images. Raises `CannotProcess` where it cannot."""
    text, pil_images = [processor.image_token * len(images)], [as_pil(image) for image in images]
    with translate_errors(*_CALLING):
        made = processor(text=text, images=pil_images, add_special_tokens=False, **more)
    return dict(made)


def _written(made: Mapping[str, Any]) -> tuple[str, tuple[int, ...]]:
    """What the processor wrote for its one image, and the ids of the whole. Raises `CannotProcess` where it does not tell."""
    offsets, ids = made.get("text_replacement_offsets"), made.get("input_ids")
    if not offsets or not offsets[0] or ids is None:
        raise CannotProcess("it does not say what it replaced")
    return str(offsets[0][0]["replacement"]), tuple(int(number) for number in ids[0])


def expand(processor: Any, image: PreparedImage, tokenizer: Tokenizer, image_token_id: int | None) -> Slot[PreparedImage]:
    """The image with what the processor writes for it; `tokens` are those that its features take the place of (id `image_token_id`).

    Fails with `UnsupportedMultimodal` where the processor cannot tell, changes the text elsewhere, knows other tokens than `tokenizer`, or makes inputs
    that depend on the whole prompt.
    """
    name = type(processor).__name__
    placeholder = getattr(processor, "image_token", None)
    if not isinstance(placeholder, str) or placeholder not in tokenizer.control_tokens:
        return Failure(UnsupportedMultimodal(f"{name} has no control token that stands for an image in a prompt ({placeholder!r})"))
    try:
        made = _called(processor, [image], return_text_replacement_offsets=True)
        written, ids = _written(made)
    except CannotProcess as raised:
        words = f"{name} does not tell what it writes for an image of {image.width}x{image.height} pixels ({raised})"
        return Failure(UnsupportedMultimodal(words[:400]))
    refusal = _refusal(processor, made, ids, of_tokenizer(tokenizer.encode, written))
    tokens = ids.count(image_token_id) if image_token_id is not None else 0
    if refusal is None and not tokens:
        refusal = f"writes no token of the model's own (id {image_token_id}) for an image"
    if refusal is not None:
        return Failure(UnsupportedMultimodal(f"{name} {refusal}, which is not supported"))
    copies = written == placeholder * tokens
    return Success(dataclasses.replace(image, tokens=tokens, expansion=None if copies else written))


class Expansions:
    """`expand`, asked once for each size of an image: what a processor writes hangs on the size alone, and `native_inputs` sees that it does."""

    def __init__(self, processor: Any, tokenizer: Tokenizer, image_token_id: int | None) -> None:
        self._processor, self._tokenizer, self._image_token_id = processor, tokenizer, image_token_id
        self._known: dict[tuple[int, int], tuple[int, str | None]] = {}

    def __call__(self, image: PreparedImage) -> Slot[PreparedImage]:
        known = self._known.get((image.width, image.height))
        if known is not None:
            return Success(dataclasses.replace(image, tokens=known[0], expansion=known[1]))
        return expand(self._processor, image, self._tokenizer, self._image_token_id).map(self._remembered)

    def _remembered(self, image: PreparedImage) -> PreparedImage:
        if len(self._known) >= SIZES:
            self._known.clear()
        self._known[image.width, image.height] = (image.tokens, image.expansion)
        return image


def _refusal(processor: Any, made: Mapping[str, Any], ids: tuple[int, ...], own: tuple[int, ...]) -> str | None:
    if ids != own:
        return "changes the text beside its images, or knows other tokens than the checkpoint's tokenizer"
    unknown = sorted(set(made) - {*_OF_TEXT, *IMAGE_MARKS, *processor.image_processor.model_input_names})
    if unknown:
        return f"makes {', '.join(unknown)}, which depends on the whole prompt"
    for name, rows in made.items():
        if name in IMAGE_MARKS:
            marks = [int(mark) for mark in rows[0]]
            if not set(marks) <= {0, 1} or _with(ids, marks, 1) & _with(ids, marks, 0):
                return f"marks the same token now as an image's and now not ({name})"
    return None


def _with(ids: Sequence[int], marks: Sequence[int], mark: int) -> frozenset[int]:
    return frozenset(number for number, own in zip(ids, marks, strict=True) if own == mark)


def native_inputs(processor: Any, images: Sequence[PreparedImage], image_token_id: int | None) -> ImageInputs:
    """The model's inputs for these images, in order, as the processor makes them; resized, cut and normalised by its own rules.

    Raises `ContractError` where it writes more or fewer tokens of the model's own (id `image_token_id`) than the images were prepared with.
    """
    made = _called(processor, images, return_tensors="pt")
    ids = made["input_ids"][0].tolist()
    written, prepared = ids.count(image_token_id), sum(image.tokens for image in images)
    if written != prepared:
        raise ContractError(f"the processor writes {written} image tokens for images that were prepared with {prepared}")
    marked = {name: _with(ids, made[name][0].tolist(), 1) for name in IMAGE_MARKS if name in made}
    return ImageInputs({name: value for name, value in made.items() if name not in (*_OF_TEXT, *IMAGE_MARKS)}, marked)
