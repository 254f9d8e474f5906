"""The light facts of a checkpoint: all that is known of a model without loading its weights.

Every engine that reads checkpoints shares them, so that prompts, images, limits and end tokens are
the same on each.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from immutabledict import immutabledict
from returns.result import Failure

from pipegen.backends.checkpoint import image_processors as processors
from pipegen.backends.checkpoint.families import family_of
from pipegen.backends.checkpoint.file_config import FileConfig, read_config
from pipegen.backends.checkpoint.file_digests import identity_of
from pipegen.backends.checkpoint.load_errors import (
    adapter_folders_of,
    broken_in,
    dtype_of,
    loading,
    require_weights,
    require_whole,
    stored_dtype,
)
from pipegen.backends.checkpoint.locate import (
    EMBEDDED,
    ModelFiles,
    has_weights,
    instead_of,
    located,
)
from pipegen.backends.checkpoint.positions import Positions, positions_of
from pipegen.backends.checkpoint.tokenizers import HFRenderer, HFTokenizer, load_tokenizer
from pipegen.backends.checkpoint.verdicts import KeptFacts
from pipegen.backends.checkpoint.videos import Videos
from pipegen.core.distribution import MissingExtra, need
from pipegen.core.errors import (
    ContractError,
    GenerationError,
    InvalidRequest,
    UnsupportedMultimodal,
    UnsupportedOption,
)
from pipegen.core.foreign_calls import attempt
from pipegen.core.names import InvalidField
from pipegen.core.slots import Slot
from pipegen.engines.settings import ModelLoadConfig
from pipegen.media.image import prepare
from pipegen.media.sizes import ImageSpec, fit
from pipegen.records.fields import mapping
from pipegen.records.frozen import printed
from pipegen.records.messages import ImageSource, VideoSource
from pipegen.records.option_groups import VlmPreprocessOptions
from pipegen.records.requests import ImagePolicy
from pipegen.records.results import PreparedImage, Prompt
from pipegen.template.unwritten import ignores_users

_WORDS = "What is it?"
"""A text that templates write as it is."""

_OF_TOKENIZER = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.json",
    "chat_template.jinja",
)
"""Small files beside tokenizer.json."""


def own_attention(config: Any) -> str:
    """The attention that a model runs with where none is set: `eager` where it caps its attention
    scores, which `sdpa` does not.
    """
    return (
        "sdpa"
        if getattr(config.get_text_config(), "attn_logit_softcapping", None) is None
        else "eager"
    )


class Checkpoint:
    """The facts of one checkpoint, each read when it is first asked for, and kept.

    Raises `NoSuchModel` (see `locate`) at once, `MissingExtra` when a fact needs a package that is
    not installed, and `CallFailed` when it cannot be read.
    """

    def __init__(self, load: ModelLoadConfig) -> None:
        self.load = load
        self.source = located(load)
        self.lock = threading.RLock()
        """Held while a processor is loaded: images may be prepared side by side."""

    @property
    def files(self) -> ModelFiles:
        """The checkpoint's files, in its folder or on the hub."""
        return ModelFiles(self.source, self.load.revision)

    @cached_property
    def _folders(self) -> tuple[Path, ...]:
        """Where the checkpoint's files are, and its adapter's."""
        adapters = adapter_folders_of(self.load).values() if self.load.adapter is not None else ()
        with loading(self.load, "the files", self.source, hint=instead_of(self.source)):
            return (self.files.folder("config.json"), *adapters)

    @property
    def identity(self) -> str:
        """A digest of the checkpoint's files, and of its adapter's: the same on every engine and
        machine, another for other weights.
        """
        return self._identity

    @cached_property
    def _identity(self) -> str:
        folders = self._folders
        with loading(self.load, "the files", self.source):
            return identity_of(*folders, whole=self.load.check_weights)

    @cached_property
    def fact(self) -> KeptFacts:
        """What the configuration says, of the whole model or of what is loaded for text alone. Code
        that comes with a model may change without it.
        """
        part = " text" if self.load.variant == "text" else ""
        return KeptFacts(None if self.load.trust_remote_code else lambda: self.identity + part)

    def resolved(self, values: Mapping[str, object]) -> dict[str, Any]:
        """The settings that change answers, without those that say what holds for this checkpoint
        anyway.
        """
        defaults: dict[str, Callable[[], Any]] = {
            "dtype": lambda: self.own_dtype,
            "variant": lambda: "vlm" if self.is_vision_model else "text",
            "attn_implementation": lambda: self.fact(
                "attention", lambda: own_attention(self.config)
            ),
            "max_model_len": lambda: self.context_length,
        }
        return {
            name: value
            for name, value in values.items()
            if name not in defaults or value != defaults[name]()
        }

    @property
    def has_weights(self) -> bool:
        """Whether the weights are here, and not only in a server."""
        return has_weights(self._folders[0])

    @property
    def _where(self) -> dict[str, Any]:
        return {"revision": self.load.revision, "trust_remote_code": self.load.trust_remote_code}

    @cached_property
    def config(self) -> Any:
        """The model's configuration, as transformers reads it."""
        need("transformers", "hf", "reading a checkpoint")
        from transformers import AutoConfig

        with loading(self.load, "the configuration", self.source, hint=instead_of(self.source)):
            return AutoConfig.from_pretrained(self.source, **self._where)

    @cached_property
    def described(self) -> Any:
        """The configuration as facts take it: the file's where it has all of them."""
        ends = attempt(lambda: self.generation_config.get("eos_token_id")).value_or(None)
        found = read_config(self.files, ends=ends is not None)
        return self.config if found is None or self.load.trust_remote_code else found

    @cached_property
    def model_type(self) -> str:
        """The architecture, as transformers names it."""
        return self.fact("model_type", lambda: str(self.described.model_type))

    @cached_property
    def is_vision_model(self) -> bool:
        """Whether the architecture takes images, however it is loaded."""
        return self.fact("is_vision_model", self._takes_images_by_type)

    def _takes_images_by_type(self) -> bool:
        described = self.described
        remote = "AutoModelForImageTextToText" in (getattr(described, "auto_map", None) or {})
        if remote or isinstance(described, FileConfig):
            return remote or bool(family_of(described.model_type).video_processor)
        from transformers.models.auto import modeling_auto as known

        return described.model_type in known.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    @cached_property
    def takes_images(self) -> bool:
        """Whether the model is loaded to take images. Raises `InvalidField` where `vlm` is asked of
        a text model.
        """
        if self.load.variant == "vlm" and not self.is_vision_model:
            raise InvalidField(
                f"ModelLoadConfig.variant: {self.load.model!r} is a text model"
                f" ({self.model_type}); take variant='text' or 'auto'"
            )
        return self.is_vision_model and self.load.variant != "text"

    @property
    def images_unsupported_reason(self) -> str:
        """Why images are not taken; empty where they are."""
        if self.takes_images:
            return ""
        return (
            "it was loaded with variant='text'"
            if self.is_vision_model
            else f"{self.model_type} is a text model"
        )

    @cached_property
    def _tokenizer_and_renderer(self) -> tuple[HFTokenizer, HFRenderer]:
        need("transformers", "hf", "reading a tokenizer")
        hint = (
            "put the tokenizer's files (tokenizer.json, tokenizer_config.json) into the folder of"
            " the checkpoint"
        )
        with loading(self.load, "the tokenizer", self.source, hint=hint):
            require_whole(self.files, *_OF_TOKENIZER)
            tokenizer, renderer = load_tokenizer(self.source, model=self.fact.model, **self._where)
            tokenizer.source("a")  # settings of the wrong type raise at the first call
            if len(tokenizer.control_tokens) >= tokenizer.source.backend_tokenizer.get_vocab_size(
                with_added_tokens=True
            ):
                raise ValueError(
                    "the tokenizer's files are missing: what transformers makes in their place has"
                    " no vocabulary"
                )
            if renderer.template is not None and ignores_users(renderer):
                raise ValueError(
                    "its chat template writes nothing of what a user says, so it is none: see its"
                    " chat_template.jinja"
                )
        return tokenizer, renderer

    @property
    def tokenizer(self) -> HFTokenizer:
        return self._tokenizer_and_renderer[0]

    @property
    def renderer(self) -> HFRenderer:
        return self._tokenizer_and_renderer[1]

    @cached_property
    def generation_config(self) -> immutabledict[str, Any]:
        """The checkpoint's own generation settings, frozen; empty where it has none."""
        with loading(self.load, "generation_config.json", self.source):
            require_whole(self.files, "generation_config.json")
            settings: immutabledict[str, Any] = mapping(self.files.json("generation_config.json"))
        return settings

    @cached_property
    def eos_token_ids(self) -> tuple[int, ...]:
        """All end tokens, of the generation settings, the configuration, or the tokenizer."""
        return tuple(self.fact("eos_token_ids", self._end_tokens))

    def _end_tokens(self) -> list[int]:  # an id of 0 counts as any other
        text = self.described.get_text_config()
        candidates = (
            self.generation_config.get("eos_token_id"),
            getattr(text, "eos_token_id", None),
            getattr(self.described, "eos_token_id", None),
        )
        value = next(
            (ids for ids in (*candidates, self.tokenizer.source.eos_token_id) if ids is not None),
            (),
        )
        ids = [*value] if isinstance(value, (list, tuple)) else [value]
        if not all(type(token_id) is int for token_id in ids):
            with loading(
                self.load,
                "the end tokens",
                self.source,
                hint="correct eos_token_id in its generation_config.json, or in its config.json",
            ):
                raise ValueError(f"eos_token_id takes an id or a list of ids, not {printed(value)}")
        return [*dict.fromkeys(ids)]

    @cached_property
    def vocab_size(self) -> int | None:
        """How many ids the model takes: the rows of its embedding, as its configuration says; None
        where it does not. The tokenizer may have more.

        An image token counts, too: some models put the image's features in the place of an id that
        the embedding does not have.
        """
        return self.fact("vocab_size", self._ids_taken)

    def _ids_taken(self) -> int | None:
        sizes = (
            getattr(config, "vocab_size", None)
            for config in (self.described.get_text_config(), self.described)
        )
        size = next((size for size in sizes if isinstance(size, int) and size > 0), None)
        if size is None:
            return None
        size += getattr(self.described, "additional_vocab_size", 0) or 0
        pieces = (self.image_token_id, self.videos.token_id)
        return max(size, *(1 + token_id for token_id in pieces if token_id is not None), 0)

    @cached_property
    def pad_token_id(self) -> int:
        """What rows are padded with: the pad token, else an end token; one that the model has.
        Raises `ValueError` where there is neither.
        """
        size = self.vocab_size
        for token_id in (self.tokenizer.source.pad_token_id, *self.eos_token_ids):
            if token_id is not None and token_id >= 0 and (size is None or token_id < size):
                return int(token_id)
        raise ValueError(
            f"{self.load.model!r} has neither a pad token nor an end token: set one of them in the"
            " checkpoint's tokenizer_config.json"
        )

    @cached_property
    def bos_token(self) -> str | None:
        """The text that a plain prompt must begin with: the BOS token, where the tokenizer itself
        puts it before a text.
        """
        raw = self.tokenizer.source
        return (
            str(raw.bos_token)
            if raw.bos_token_id is not None and raw("a")["input_ids"][:1] == [raw.bos_token_id]
            else None
        )

    @cached_property
    def dtype(self) -> str:
        """What the model computes in, on every engine: `float32`, `bfloat16` or `float16`.

        With `dtype="auto"` that is the type that the configuration names, else that of the stored
        weights, else float32; the embedded model's is float32.
        """
        if self.load.dtype != "auto":
            return self.load.dtype
        return "float32" if self.load.model == EMBEDDED else self.own_dtype

    @cached_property
    def own_dtype(self) -> str:
        """What the checkpoint's files name."""
        return self.fact("dtype", self._dtype_named)

    def _dtype_named(self) -> str:
        named = dtype_of(getattr(self.described, "dtype", None)) or dtype_of(
            getattr(self.described.get_text_config(), "dtype", None)
        )
        return named or dtype_of(stored_dtype(self.files)) or "float32"

    def require_weights(self) -> None:
        """Raise `CallFailed` where a file of the weights is here and broken, or named by an index
        and not here. Reads headers only.
        """
        with loading(self.load, "the weights", self.source):
            require_weights(self.files)

    @cached_property
    def positions(self) -> Positions:
        """How many positions there are, and how they are scaled."""
        return Positions(**self.fact("positions", self._positions_named))

    def _positions_named(self) -> dict[str, Any]:
        with loading(
            self.load,
            "the configuration",
            self.source,
            hint="correct max_position_embeddings, or the scaling of rope, in its config.json",
        ):
            positions = positions_of(self.described.get_text_config())
            if positions.context_length is not None and positions.context_length < 1:
                raise ValueError(f"it has {positions.context_length} positions")
        return asdict(positions)

    @property
    def context_length(self) -> int | None:
        """How many tokens prompt and answer may have together; None where the configuration does
        not say.
        """
        return self.positions.context_length

    @cached_property
    def image_processor(self) -> Any:
        """The model's image processor; it works without torchvision. Raises `CannotProcess`, with
        the reason, where it cannot be had.
        """
        need("PIL", "hf", "reading images")
        from transformers import AutoImageProcessor

        auto: Any = AutoImageProcessor
        with processors.translate_errors():
            return auto.from_pretrained(self.source, backend="pil", **self._where)

    @cached_property
    def processor(self) -> Any:
        """The checkpoint's whole processor, for models whose processors have sizes of their own.
        Raises as `load_processor` does.
        """
        need("transformers", "hf", "reading images")
        return processors.load_processor(
            self.files, self.config.model_type, trust_remote_code=self.load.trust_remote_code
        )

    @cached_property
    def no_processor_because(self) -> str:
        """Why images cannot be prepared with the packages that are here; empty where they can."""
        try:
            with self.lock:  # images may be prepared side by side, and one processor is enough
                if self.image_spec.kind == "native":
                    _ = self.processor
                else:
                    processors.check_pixels(self.image_processor, self.image_spec)
        except (processors.CannotProcess, MissingExtra) as raised:
            broken = broken_in(self.files, "preprocessor_config.json", "processor_config.json")
            because = raised if broken is None else f"{broken.words} ({broken.hint})"
            return f"the image processor of {self.load.model!r} cannot be used: {because}"[:600]
        return ""

    @cached_property
    def image_spec(self) -> ImageSpec:
        """What images have to become for this model."""
        return processors.spec_from(self.image_processor, self.config)

    @cached_property
    def videos(self) -> Videos:
        """What is known of this model's videos."""
        return Videos(self)

    @cached_property
    def image_token_id(self) -> int | None:
        """The id that stands for a piece of an image in a prompt."""
        if not self.takes_images:
            return None
        names = ("image_token_id", "image_token_index")
        return self.fact(
            "image_token_id",
            lambda: next(
                (
                    int(getattr(self.described, name))
                    for name in names
                    if isinstance(getattr(self.described, name, None), int)
                ),
                None,
            ),
        )

    @cached_property
    def image_placeholder(self) -> str | None:
        """The control token that stands for one image in a prompt."""
        return self.fact("image_placeholder", self._image_token)

    def _image_token(self) -> str | None:
        """The processor's where it has sizes of its own, else the model's."""
        if self.image_token_id is None:
            return None
        grid = isinstance(self.described, FileConfig) and processors.names_grid(self.files)
        native = not (grid or self.no_processor_because) and self.image_spec.kind == "native"
        image_token = getattr(self.processor, "image_token", None) if native else None
        with loading(
            self.load,
            "the tokenizer",
            self.source,
            hint="put the tokenizer's files of this model into its folder",
        ):
            token = str(
                image_token or self.tokenizer.source.convert_ids_to_tokens(self.image_token_id)
            )
            if token not in self.tokenizer.control_tokens:
                reason = (
                    f"config.json says that id {self.image_token_id} stands for an image, and to"
                    f" the tokenizer it is {token!r}"
                )
                raise ValueError(f"{reason}: they belong to different models")
        return token

    @cached_property
    def framed_image_placeholder(self) -> str | None:
        """What the chat template writes for one image. It is the placeholder alone where there is
        no template.
        """
        placeholder = self.image_placeholder
        if placeholder is None or self.renderer.template is None:
            return placeholder

        def rendered(images: int) -> str:
            parts = [*({"type": "image"} for _ in range(images)), {"type": "text", "text": _WORDS}]
            messages = [{"role": "user", "content": parts}]
            return self.renderer.render(messages, tools=(), template=None, variables={})

        def framed(texts: Sequence[str]) -> str:
            bare, one, two = texts
            before = bare[: bare.find(_WORDS)]
            frame = one[len(before) : one.find(_WORDS)] if one.startswith(before) else ""
            alike = frame.count(placeholder) == 1 and f"{before}{frame}{frame}{_WORDS}" in two
            return frame if alike else placeholder

        # a template may raise, such as for a list of parts
        return attempt(lambda: [*map(rendered, range(3))]).map(framed).value_or(placeholder)

    def check_placeholders(self, prompt: Prompt) -> InvalidRequest | None:
        """What is wrong where a prompt does not hold exactly the placeholders of its images. A
        model could not tell, or would fail for all rows.
        """
        for kind, token_id in (("image", self.image_token_id), ("video", self.videos.token_id)):
            images = [image for image in prompt.images if image.is_video == (kind == "video")]
            marks = prompt.token_ids.count(token_id) if token_id is not None else 0
            tokens = sum(image.tokens for image in images)
            if marks != tokens:
                return InvalidRequest(
                    f"the prompt holds {marks} {kind} tokens (id {token_id}), and its"
                    f" {len(images)} {kind}s take {tokens}"
                )
        return None

    def check_server_resize(self, prompt: Prompt) -> GenerationError | None:
        """What is wrong where a server that applies the model's own processor would give an image
        another size than it was prepared to.

        Most take no other pixel budget, nor to leave the size alone.
        """
        spec = self.image_spec if prompt.images else None
        if spec is None or spec.kind != "grid":
            return None
        for position, image in enumerate(prompt.images):
            size = fit(
                image.width,
                image.height,
                factor=spec.factor,
                min_pixels=spec.min_pixels,
                max_pixels=spec.max_pixels,
            )
            if size != (image.width, image.height):
                message = (
                    f"image {position} was prepared to {image.width}x{image.height} pixels, and the"
                    f" server's processor would make it {size[0]}x{size[1]}"
                )
                least = image.width * image.height < spec.min_pixels
                return UnsupportedOption(
                    message,
                    option="max_pixels" if least else "min_pixels",
                    hint="keep within the checkpoint's own pixel budget",
                )
        return None

    @cached_property
    def _expansions(self) -> processors.Expansions:
        return processors.Expansions(self.processor, self.tokenizer, self.image_token_id)

    def prepare_image(
        self, source: ImageSource, options: VlmPreprocessOptions, index: int
    ) -> Slot[PreparedImage]:
        """One image, or the frames of one video, as this model wants it. Raises `ContractError` for
        a source whose bytes are not loaded.
        """
        if isinstance(source, VideoSource):
            return self.videos.prepare(source, options, index)
        if source.data is None:
            raise ContractError(f"{source!r} was not loaded: an engine takes images as bytes")
        if self.no_processor_because:
            hint = (
                "see that its preprocessor_config.json is the model's own; catch it with"
                " fallback(first, second, when=UnsupportedMultimodal)"
            )
            return Failure(UnsupportedMultimodal(self.no_processor_because, hint=hint))
        policy = (
            ImagePolicy()
            if source.max_pixels is None
            else ImagePolicy(max_source_pixels=source.max_pixels)
        )
        prepared = prepare(source.data, self.image_spec, options, index, policy)
        if self.image_spec.kind == "grid":
            return prepared
        with self.lock:
            expansions = self._expansions
        return prepared.bind(expansions)

    def image_inputs(self, images: Sequence[PreparedImage]) -> processors.ImageInputs:
        """What the model gets for these images and videos, in order, and which ids it must see
        marked as theirs.
        """
        if self.image_spec.kind == "native":
            return processors.native_inputs(self.processor, images, self.image_token_id)
        videos = [image for image in images if image.is_video]
        stills = [image for image in images if not image.is_video]
        marked = {
            token_id: mark
            for token_id, mark in ((self.image_token_id, 1), (self.videos.token_id, 2))
            if token_id is not None
        }
        tensors = processors.pixel_inputs(self.image_processor, stills)
        if videos:
            tensors |= self.videos.inputs(videos)
        return processors.ImageInputs(tensors, dict.fromkeys(processors.IMAGE_MARKS, marked))
