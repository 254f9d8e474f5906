"""The Hugging Face engine: any decoder-only checkpoint of transformers, run by pipegen's own decode
loop.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pipegen.backends.checkpoint.checkpoint import Checkpoint
from pipegen.backends.checkpoint.checkpoint_engine import CheckpointEngine
from pipegen.backends.checkpoint.locate import adapters_of, check_adapters
from pipegen.backends.step_loop import Mailbox
from pipegen.core.distribution import need
from pipegen.core.names import InvalidField
from pipegen.core.slots import Slot
from pipegen.engines.settings import ModelLoadConfig
from pipegen.records.messages import ImageSource
from pipegen.records.option_groups import VlmPreprocessOptions
from pipegen.records.results import PreparedImage

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from pipegen.backends.hf.computing import Computing, HFSession
    from pipegen.backends.hf.first_steps import Way
    from pipegen.backends.hf.scheduler import Work


ROWS = 32
"""Sequences that run side by side by default."""


class _Parts:
    """What computes, made when it is first asked for, once for all copies of an engine."""

    def __init__(self, make: Callable[[], Computing]) -> None:
        self._make, self._lock = make, threading.Lock()
        self.made: Computing | None = None

    def __call__(self) -> Computing:
        with self._lock:
            if self.made is None:
                self.made = self._make()
            return self.made


class HFEngine(CheckpointEngine):
    """An engine on one checkpoint. Tokenizer, template, limits and images work at once; weights
    load with the first call.

    Raises `NoSuchModel` where the checkpoint's folder is not there, and `MissingExtra` where a
    package is missing. `InvalidField` is for a setting that cannot be kept on this machine (see
    `check_settings`).

    >>> engine = HFEngine(ModelLoadConfig(model="embedded"))
    >>> engine.image_placeholder, engine.loaded
    ('<|image_pad|>', False)
    """

    name = _kind = "hf"

    def __init__(self, load: ModelLoadConfig, checkpoint: Checkpoint | None = None) -> None:
        super().__init__(load, checkpoint)
        check_settings(load)
        self._size = 1 if load.deterministic else load.batch_size or ROWS

        def make() -> Computing:
            from pipegen.backends.hf.computing import Computing

            return Computing(load, self._checkpoint, self._size)

        self._parts = _Parts(make)

    @property
    def computing(self) -> Computing:
        """The weights and what is kept beside them; torch and transformers are imported for it."""
        return self._parts()

    def import_packages(self) -> None:
        """Import torch, transformers and what computes here; nothing is loaded."""
        import pipegen.backends.hf.computing  # noqa: F401

    @property
    def loaded(self) -> bool:
        """Whether the weights are in memory."""
        return self._parts.made is not None and self._parts.made.weights.loaded

    @property
    def work(self) -> Work:
        """What the engine has computed so far, with all its plugins: passes, rows and tokens. It is
        the same for the same calls.
        """
        parts = self.computing
        return dataclasses.replace(parts.traits.work, shares_nothing=parts.prefixes.unshared)

    @property
    def prompt_work(self) -> Work:
        """The same, as it goes on counting: of the tokens of prompts."""
        return self.computing.traits.work

    def check(self) -> Way:
        """See `Computing.check`."""
        return self.computing.check()

    def close(self) -> None:
        if self._parts.made is not None:
            self._parts.made.close()

    def prepare_image(
        self, source: ImageSource, options: VlmPreprocessOptions, index: int
    ) -> Slot[PreparedImage]:
        return self.computing.prepared(source, options, index)

    @property
    def in_flight(self) -> int:
        """How many requests are kept in flight for it: some batches, so that prompts of like
        lengths are read together.
        """
        return 64 * self._size

    def open(
        self,
        wake: Callable[[], object],
        *,
        tokens: bool = False,
        loop: AbstractEventLoop | None = None,
        fed: bool = False,
    ) -> HFSession:
        """A call to which rows may be added while it runs. Rows of calls at one time advance
        together.

        Where the memory runs out, half as many rows go on, down to single rows. A row that does not
        fit alone fails.
        """
        from pipegen.backends.hf.computing import HFSession

        mailbox = Mailbox[Any](None if loop is None else wake)
        return HFSession(self.computing, self.plugins, mailbox, text=tokens)

    @property
    def longest_scored(self) -> int | None:
        """One token more than the model has positions: the last one is predicted, and not read."""
        return (
            None if self._checkpoint.context_length is None else self._checkpoint.context_length + 1
        )


OWN = {
    **{
        name: name
        for name in ("dtype", "device_map", "attn_implementation", "revision", "trust_remote_code")
    },
    "torch_dtype": "dtype",
    "adapter_name_or_path": "adapter",
}
"""Arguments of `from_pretrained` that pipegen gives itself, and the field that says each."""
_ALONE = {"batch_size": 1, "prefix_memory_bytes": 0, "compile": False}
"""What settings say, if anything, where rows are computed one by one, each from its own tokens."""
_SPREAD = ("auto", "balanced", "balanced_low_0", "sequential")


def check_settings(load: ModelLoadConfig) -> None:
    """Raise `InvalidField` for a device that is not here, an adapter's folder that is not there,
    an argument that a field of the record says, and one that `deterministic` leaves no use for.

    Raises `MissingExtra` where a setting needs a package that is not installed.
    """
    for name in load.engine_kwargs:
        if name in OWN:
            raise InvalidField(
                f"ModelLoadConfig.engine_kwargs takes no {name!r} for backend 'hf': set {OWN[name]}"
            )
        if name in ("config", "output_loading_info", "pretrained_model_name_or_path"):
            raise InvalidField(
                f"ModelLoadConfig.engine_kwargs takes no {name!r} for backend 'hf': pipegen sets it"
                " itself"
            )
    for name, value in _ALONE.items() if load.deterministic else ():
        if getattr(load, name) not in (None, value):
            raise InvalidField(
                f"ModelLoadConfig.{name} is not for a deterministic engine, which computes rows one"
                " by one: leave out either"
            )
    if load.device is not None:
        _check_device("device", load.device)
    if load.device_map is not None:
        need("accelerate", "hf", "device_map")
        if load.device_map not in _SPREAD:
            _check_device("device_map", load.device_map)
    if adapters_of(load):
        need("peft", "peft", "a LoRA adapter")
        check_adapters(load)
    if load.adapters and load.compile:
        raise InvalidField(
            "ModelLoadConfig.compile is for a model whose rows all have the same weights: leave it or"
            " adapters out"
        )


def _check_device(field: str, name: str) -> None:
    import torch

    try:
        device = torch.device(name)
        kind = torch.get_device_module(device)
    except RuntimeError:
        raise InvalidField(
            f"ModelLoadConfig.{field} takes a device such as cpu, cuda or cuda:1, not {name!r}"
        ) from None
    count = kind.device_count() if kind.is_available() else 0
    if (device.index or 0) >= count:
        here = f"{count} of the kind" if count else "none of the kind"
        raise InvalidField(
            f"ModelLoadConfig.{field}: there is no {name!r} here; torch {torch.__version__} finds"
            f" {here}: leave {field} out to take what is here"
        )
