"""Loading a checkpoint's weights, and letting go of them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch
import transformers

from pipegen.backends.checkpoint.adapters import BadAdapter, adapter_config, refuse_parts, weight_names
from pipegen.backends.checkpoint.checkpoint import Checkpoint
from pipegen.backends.hf.attention import fitting_attention, use_grouped
from pipegen.backends.hf.compiled import Compiled, check_compilable
from pipegen.backends.hf.memory import is_out_of_memory, release
from pipegen.backends.hf.rope import use_own_factors
from pipegen.engines.extras import need
from pipegen.records.secret import revealed

__all__ = ["Weights", "load_model", "pick_device"]

_hf: Any = transformers  # its own annotations are partial
_LOADING = threading.Lock()
"""One model loads at a time: while transformers makes one it changes torch for the whole process, and another would come out with weights missing."""


def pick_device(asked: str | None) -> torch.device:
    """The device asked for, else CUDA, Apple's MPS or the CPU, whichever is there first."""
    if asked is not None:
        return torch.device(asked)
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def load_model(checkpoint: Checkpoint) -> Any:
    """The checkpoint's model with its weights, ready to generate.

    Its dtype is `Checkpoint.dtype`. Raises `MissingExtra`
    where `device_map` or an adapter needs a package that is not there, and `ValueError` where weights are missing from the checkpoint, the model is an
    encoder-decoder, its steps are to be compiled and cannot be, or the tokenizer has nothing to pad with; what transformers raises comes through.
    """
    load = checkpoint.load
    if getattr(checkpoint.config, "is_encoder_decoder", False):
        raise ValueError(f"{load.model!r} is an encoder-decoder ({checkpoint.config.model_type}); pipegen runs decoder-only models")
    _ = checkpoint.pad_token_id  # raises before anything large is read
    if load.device_map is not None:
        need("accelerate", "hf", "device_map")
    if load.adapter is not None:
        need("peft", "peft", "a LoRA adapter")
    asked: dict[str, Any] = {
        "dtype": checkpoint.dtype,
        "device_map": load.device_map,
        "attn_implementation": fitting_attention(checkpoint.config, load.attn_implementation),
        "revision": load.revision,
        "trust_remote_code": load.trust_remote_code,
    }
    kind = _hf.AutoModelForImageTextToText if checkpoint.is_vision_model else _hf.AutoModelForCausalLM
    with _LOADING, _quietly():
        model, report = kind.from_pretrained(checkpoint.source, output_loading_info=True, **asked, **revealed(load.engine_kwargs))
        if report["missing_keys"]:
            some = ", ".join(sorted(report["missing_keys"])[:3])
            raise ValueError(
                f"{load.model!r} lacks {len(report['missing_keys'])} of the model's weights, such as {some}: it is not a whole generative checkpoint"
            )
        if load.adapter is not None:
            _load_adapter(model, str(load.adapter))
        if load.device_map is None:
            model.to(pick_device(load.device))
        if load.attn_implementation is None:
            use_grouped(model)
        if checkpoint.positions.long_after is not None:
            use_own_factors(model, checkpoint.positions.long_after)
    if load.compile:
        check_compilable(model)
    model.generation_config = _hf.GenerationConfig()  # pipegen resolves every option itself: nothing of the checkpoint's may slip in
    return model.eval()


def _load_adapter(model: Any, adapter: str) -> None:
    """Load an adapter, all of it. Raises `BadAdapter` where peft takes none of it, or would take it in part and say nothing."""
    _ = adapter_config(adapter), weight_names(adapter)
    try:
        report = model.load_adapter(adapter)
    except (OSError, ValueError, RuntimeError) as error:  # as peft and transformers say that it is none, is not there, or has other sizes
        if isinstance(error, RuntimeError) and is_out_of_memory(error):
            raise
        raise BadAdapter(f"the adapter {adapter!r} cannot be loaded: {error}"[:600]) from error
    places = sum("lora_" in name for name, _ in model.named_parameters())
    refuse_parts(adapter, report.unexpected_keys, report.missing_keys, matched=len(report.missing_keys) < places)


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """No progress bars and no advice on the terminal: what matters is raised."""
    logging = _hf.utils.logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


class Weights:
    """A model that loads when it is first needed; engines that differ only in their plugins share it.

    `lock` must be held around every forward pass: a model runs one batch at a time.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._model: Any = None
        self.compiled: Compiled | None = None
        """The model's steps, where they are to be compiled and the model is loaded."""
        self.lock = threading.RLock()

    @property
    def loaded(self) -> bool:
        return self._model is not None

    def model(self) -> Any:
        """The model; loads it where needed."""
        with self.lock:
            if self._model is None:
                self._model = load_model(self._checkpoint)
                self.compiled = Compiled(self._model) if self._checkpoint.load.compile else None
            return self._model

    def close(self) -> None:
        """Let go of the model and give its memory back. It loads again when it is needed again."""
        with self.lock:
            if self._model is not None:
                self._model = self.compiled = None
                release()
