"""Loading a checkpoint's weights, and letting go of them."""

from __future__ import annotations

import contextlib
import inspect
import threading
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import transformers

from pipegen.backends.checkpoint.adapters import (
    BadAdapter,
    ChangesOtherRows,
    adapter_config,
    check_shapes,
    refuse_parts,
    tensors_of,
    weight_shapes,
)
from pipegen.backends.checkpoint.checkpoint import Checkpoint
from pipegen.backends.checkpoint.checkpoint_engine import release
from pipegen.backends.checkpoint.in_memory import CheckpointInMemory
from pipegen.backends.checkpoint.load_errors import engine_failed, short
from pipegen.backends.checkpoint.locate import adapters_of
from pipegen.backends.hf.attention import fitting_attention, use_grouped
from pipegen.backends.hf.cache_argument import UnknownCache
from pipegen.backends.hf.compiled import Compiled, check_compilable
from pipegen.backends.hf.row_adapters import inner_name, join_adapters
from pipegen.backends.hf.video_positions import correct_positions
from pipegen.core.errors import BackendFailed, CallFailed
from pipegen.engines.settings import ModelLoadConfig
from pipegen.records.secret import revealed

_hf: Any = transformers  # its own annotations are partial
_LOADING = threading.Lock()
"""One model loads at a time: while transformers makes one it changes torch for the whole process,
and another would come out with weights missing.
"""


def pick_device(name: str | None) -> torch.device:
    """The device asked for, else CUDA, Apple's MPS or the CPU, whichever is there first."""
    if name is not None:
        return torch.device(name)
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def load_model(checkpoint: Checkpoint) -> Any:
    """The checkpoint's model with its weights, or the caller's, ready to generate. Its dtype is
    `Checkpoint.dtype`.

    Raises `ValueError` where weights are missing, the model is an encoder-decoder or an encoder, its
    steps cannot be compiled, or the tokenizer has nothing to pad with. What transformers raises comes through.
    """
    load = checkpoint.load
    if getattr(checkpoint.config, "is_encoder_decoder", False):
        raise ValueError(
            f"{load.model!r} is an encoder-decoder ({checkpoint.config.model_type}); pipegen runs"
            " decoder-only models"
        )
    names = getattr(checkpoint.config, "architectures", None) or ()
    if names and all(name.endswith("ForMaskedLM") for name in names):
        # transformers would load an encoder such as BERT as a causal model all the same
        raise ValueError(
            f"{load.model!r} ({checkpoint.config.model_type}) fills masks in a text, each token seeing"
            " those behind it: it cannot generate; pipegen runs decoder-only models"
        )
    _ = checkpoint.pad_token_id  # raises before anything large is read
    if isinstance(checkpoint, CheckpointInMemory):
        model = checkpoint.model
        fitting_attention(
            checkpoint.config, checkpoint.config.get_text_config()._attn_implementation
        )
    else:
        model = _read_model(checkpoint)
    if checkpoint.positions.long_after is not None:
        use_own_factors(model, checkpoint.positions.long_after)
    correct_positions(model)
    if load.compile:
        check_compilable(model)
    return model.eval()


def _read_model(checkpoint: Checkpoint) -> Any:
    load = checkpoint.load
    arguments: dict[str, Any] = {
        "dtype": checkpoint.dtype,
        "device_map": load.device_map,
        "attn_implementation": fitting_attention(checkpoint.config, load.attn_implementation),
        "revision": load.revision,
        "trust_remote_code": load.trust_remote_code,
    }
    kind = (
        _hf.AutoModelForImageTextToText if checkpoint.is_vision_model else _hf.AutoModelForCausalLM
    )
    with _LOADING, _quietly():
        try:
            model, report = kind.from_pretrained(
                checkpoint.source,
                output_loading_info=True,
                **arguments,
                **revealed(load.engine_kwargs),
            )
        except RuntimeError as raised:
            if "ignore_mismatched_sizes" not in str(raised):
                raise
            raise ValueError(
                "its weights have other shapes than its config.json says: the two belong to"
                " different models"
            ) from raised
        if report["missing_keys"]:
            some = ", ".join(sorted(report["missing_keys"])[:3])
            raise ValueError(
                f"{load.model!r}: {len(report['missing_keys'])} of the model's weights are missing,"
                f" such as {some}: it is not a whole generative checkpoint"
            )
        for place, adapter in enumerate(adapters_of(load).values(), 1):
            _load_adapter(model, adapter, inner_name(place), per_row=bool(load.adapters))
        if load.device_map is None:
            model.to(pick_device(load.device))
        if load.adapters:
            with torch.no_grad():
                join_adapters(model.eval(), [*load.adapters], checkpoint.pad_token_id)
        if load.attn_implementation is None:
            use_grouped(model)
    # pipegen resolves every option itself: nothing of the checkpoint's may slip in
    model.generation_config = _hf.GenerationConfig()
    return model


def _load_adapter(model: Any, adapter: str, name: str, *, per_row: bool) -> None:
    """Load an adapter, all of it, under a name of its own. Raises `BadAdapter` where peft takes
    none of it, or would take it in part and say nothing; with `per_row`, where it would change rows
    without it.
    """
    config = adapter_config(adapter)
    check_shapes(adapter, config, weight_shapes(adapter), model)
    if per_row and config.get("bias", "none") != "none":
        raise ChangesOtherRows(
            f"the adapter {adapter!r} has bias={config['bias']!r}: its biases take the place of the"
            " model's own, for the rows of all adapters"
        )
    try:
        report = model.load_adapter(
            adapter, adapter_name=name, adapter_state_dict=tensors_of(adapter, config)
        )
    except (OSError, ValueError, RuntimeError) as error:
        # as peft and transformers say that it is none, is not there, or has other sizes
        if isinstance(error, RuntimeError) and is_out_of_memory(error):
            raise
        form = config.get("peft_type", "LORA")
        raise BadAdapter(
            f"the adapter {adapter!r} ({form}) cannot be loaded: {error}"[:600]
        ) from error
    # those of the adapters before it are reported as missing, too, and tied ones
    own = {
        path: weight
        for path, weight in model.named_parameters(remove_duplicate=False)
        if name in path.split(".")
    }
    loaded = {id(weight) for path, weight in own.items() if path not in report.missing_keys}
    missing = [path for path, weight in own.items() if id(weight) not in loaded]
    refuse_parts(adapter, report.unexpected_keys, missing, matched=bool(loaded))


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """No progress bars and no advice on the terminal: what matters is raised."""
    logging = _hf.utils.logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Already found a `peft_config`")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


class Weights:
    """A model that loads when it is first needed; engines that differ only in their plugins share
    it.

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
                modules = [weakref.ref(module) for module in self._model.modules()]
                self._model = self.compiled = None
                release(modules)


def advice(load: ModelLoadConfig, raised: Exception) -> str:
    """What to do about this failure of `from_pretrained`, where a setting of the caller's is in its
    words; else nothing.

    >>> advice(
    ...     ModelLoadConfig(model="m", engine_kwargs={"foo": 1}),
    ...     TypeError("__init__() got an unexpected keyword argument 'foo'"),
    ... )
    "engine_kwargs are arguments of from_pretrained, or settings of the model's configuration: 'foo' is neither"
    """
    for name in load.engine_kwargs:
        if str(raised).endswith(f"unexpected keyword argument {name!r}"):
            return (
                "engine_kwargs are arguments of from_pretrained, or settings of the model's"
                f" configuration: {name!r} is neither"
            )
    return ""


def use_own_factors(model: Any, limit: int) -> None:
    """Let every row of a pass have the rotary factors of its own length: the long ones where it has
    more than `limit` tokens.

    Raises `ValueError` where the model has no rotary module that can be asked for some rows alone.
    """
    rotary = [module for module in model.modules() if "rotary" in type(module).__name__.lower()]
    # images may have others
    modules = [
        module for module in rotary if "longrope" in str(getattr(module, "rope_type", ""))
    ] or rotary
    if not modules or not all(
        "position_ids" in inspect.signature(module.forward).parameters for module in modules
    ):
        raise ValueError(
            f"{type(model).__name__} has other rotary factors (LongRoPE) after {limit} tokens, and"
            " pipegen cannot ask its module row by row"
        )
    for module in modules:
        module.forward = _by_row(module.forward, limit)


def _by_row(forward: Callable[..., Any], limit: int) -> Callable[..., Any]:
    """The module's forward, called for short and long rows apart; `position_ids` have the shape
    (rows, columns), counted from 0.
    """

    def by_row(x: torch.Tensor, position_ids: torch.Tensor, *more: Any, **others: Any) -> Any:
        long = [last >= limit for last in position_ids.amax(dim=-1).tolist()]
        if len(set(long)) == 1:
            return forward(x, position_ids, *more, **others)
        order = sorted(range(len(long)), key=long.__getitem__)
        places, short = torch.tensor(order, device=position_ids.device), long.count(False)
        parts = [
            forward(x, position_ids[rows], *more, **others)
            for rows in (places[:short], places[short:])
        ]
        back = places.argsort()
        return tuple(torch.cat(both)[back] for both in zip(*parts, strict=True))

    return by_row


_WORDS = ("out of memory", "not enough memory", "can't allocate memory")
"""How torch says it where it raises a plain `RuntimeError`: the CPU allocator, and some
accelerators.
"""


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether a device or the machine had no memory left.

    >>> is_out_of_memory(
    ...     RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes")
    ... )
    True
    >>> is_out_of_memory(RuntimeError("shapes cannot be multiplied"))
    False
    """
    return isinstance(error, torch.OutOfMemoryError) or any(
        text in str(error).lower() for text in _WORDS
    )


_MODEL_CODE = ("torch.nn.modules", "torch.utils", "transformers")


class PassFailed(NamedTuple):
    """Why a pass failed, where fewer rows may pass."""

    full: str
    """What torch says where there was no memory left; empty where the model's code raised."""
    raised: Exception | None
    """What the model's code raised."""

    def of_row(self) -> BackendFailed:
        """The failure of a row that was alone in the pass; the traceback goes to the log."""
        if self.raised is None:
            return engine_failed(
                "hf",
                self.full,
                scope="row",
                hint="free memory on the device, shorten the prompt, or lower max_new_tokens",
            )
        return engine_failed(
            "hf",
            f"the model's code raises for this row: {short(self.raised)}",
            scope="row",
            hint="check the row's prompt and images; the log has the traceback under the incident",
            raised=self.raised,
        )


def pass_failed(raised: Exception) -> PassFailed:
    """What is known of a pass that raised, where fewer rows may pass. Raises `CallFailed` where an
    accelerator failed, and a bug of pipegen as it is.

    >>> pass_failed(RuntimeError("DefaultCPUAllocator: can't allocate memory")).full
    "DefaultCPUAllocator: can't allocate memory"
    >>> pass_failed(ValueError("a bug of pipegen"))
    Traceback (most recent call last):
    ...
    ValueError: a bug of pipegen
    """
    if isinstance(raised, RuntimeError):
        # torch's own errors for memory and for devices are RuntimeErrors
        if is_out_of_memory(raised):
            return PassFailed(str(raised), None)  # what was raised holds what the pass held
        if isinstance(raised, getattr(torch, "AcceleratorError", ())) or str(raised).startswith(
            "CUDA error"
        ):
            raise CallFailed(engine_failed("hf", str(raised))) from raised
    if isinstance(raised, UnknownCache) or not _is_of_the_model(raised):
        raise raised
    return PassFailed("", raised)


def _is_of_the_model(raised: Exception) -> bool:
    """Whether the code of a model raised it, or that of transformers, and not pipegen's: by the
    last frame of either.
    """
    frames = traceback.walk_tb(raised.__traceback__)
    modules = [str(frame.f_globals.get("__name__")) for frame, _ in frames]
    return next(
        (
            module.startswith(_MODEL_CODE)
            for module in reversed(modules)
            if module.startswith(("pipegen.", *_MODEL_CODE))
        ),
        False,
    )
