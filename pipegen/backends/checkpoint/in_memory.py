"""A model that is in memory already, as a checkpoint: its facts come from the objects that the
caller gives, and no file is read.
"""

from __future__ import annotations

import hashlib
import json
import threading
from functools import cached_property
from typing import Any

from immutabledict import immutabledict

from pipegen.backends.checkpoint.checkpoint import Checkpoint
from pipegen.backends.checkpoint.image_processors import CannotProcess
from pipegen.backends.checkpoint.load_errors import dtype_of
from pipegen.backends.checkpoint.tokenizers import HFRenderer, HFTokenizer
from pipegen.backends.checkpoint.verdicts import KeptFacts
from pipegen.engines.settings import ModelLoadConfig
from pipegen.records.fields import mapping

_SAMPLES = 64


class CheckpointInMemory(Checkpoint):
    """The facts of a model of transformers, its tokenizer, and its processor where it takes images.

    Raises `ValueError` for a tokenizer in pure Python (see `HFTokenizer`).
    """

    def __init__(
        self, load: ModelLoadConfig, model: Any, tokenizer: Any, processor: Any | None
    ) -> None:
        self.load, self.source = load, str(load.model)
        self.lock = threading.RLock()
        self.model, self._raw, self._processor = model, tokenizer, processor
        _ = self._tokenizer_and_renderer  # which may raise

    @cached_property
    def _tokenizer_and_renderer(self) -> tuple[HFTokenizer, HFRenderer]:
        templates = getattr(self._processor, "chat_template", None) or self._raw.chat_template
        return HFTokenizer(self._raw), HFRenderer(self._raw, templates)

    @cached_property
    def fact(self) -> KeptFacts:
        return KeptFacts(None)  # the weights may be trained on

    @cached_property
    def config(self) -> Any:
        return self.model.config

    @cached_property
    def described(self) -> Any:
        return self.config

    @cached_property
    def generation_config(self) -> immutabledict[str, Any]:
        config = getattr(self.model, "generation_config", None)
        settings: immutabledict[str, Any] = mapping({} if config is None else config.to_diff_dict())
        return settings

    @cached_property
    def own_dtype(self) -> str:
        return dtype_of(self.model.dtype) or "float32"

    @property
    def identity(self) -> str:  # not cached: the weights may be trained on
        """A digest of the configuration, generation settings, tokenizer, template and processor,
        and of every weight's type and samples, as they are now.
        """
        digest = hashlib.blake2b(digest_size=16)
        processor = (
            ""
            if self._processor is None
            else json.dumps(
                getattr(self._processor, "to_dict", dict)(), sort_keys=True, default=str
            )
        )
        generation = json.dumps(dict(self.generation_config), sort_keys=True, default=str)
        for text in (
            self.config.to_json_string(),
            generation,
            self.tokenizer.raw.backend_tokenizer.to_str(),
            self.renderer.template or "",
            processor,
        ):
            digest.update(f"{text}\0".encode())
        for name, weight in self.model.state_dict().items():
            digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}\0".encode())
            digest.update(_samples(weight))
        return digest.hexdigest()

    @property
    def weights_now(self) -> bytes:
        """A digest that another state of the weights does not have: of where each weight lies, how
        often torch wrote to it, and samples, for what writes past torch's count (`weight.data`).
        """
        digest = hashlib.blake2b(digest_size=16)
        for weight in self.model.state_dict().values():
            writes = 0 if weight.is_inference() else weight._version
            digest.update(f"{weight.data_ptr()} {writes}\0".encode() + _samples(weight))
        return digest.digest()

    @property
    def has_weights(self) -> bool:
        return True

    @cached_property
    def processor(self) -> Any:
        if self._processor is None:
            raise CannotProcess("no processor was given: hf(model, tokenizer=..., processor=...)")
        return self._processor

    @cached_property
    def image_processor(self) -> Any:
        return getattr(self.processor, "image_processor", self.processor)


def _samples(weight: Any) -> bytes:
    flat = weight.detach().reshape(-1)
    samples: bytes = flat[:: max(1, len(flat) // _SAMPLES)].float().cpu().numpy().tobytes()
    return samples
