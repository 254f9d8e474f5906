"""Starting vLLM: which versions are taken, which files must be whole, and what it means where it does not start."""

# vLLM need not be installed where types are checked.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from pipegen.backends.checkpoint.adapters import adapter_config
from pipegen.backends.checkpoint.foreign import broken_file, load_failed, weight_files
from pipegen.core.errors import CallFailed
from pipegen.engines.extras import MissingExtra
from pipegen.engines.settings import ModelLoadConfig
from pipegen.records.fields import InvalidField

__all__ = ["HIGHEST", "LOWEST", "CannotStart", "check_adapter_settings", "check_files", "check_version", "starting", "unread_settings"]

LOWEST, HIGHEST = (0, 27), (0, 32)
"""The versions of vLLM on which the tests of the real engine were run, the lowest and the newest, and what lies between them."""
ADAPTER_SETTINGS = ("rank_pattern", "alpha_pattern", "lora_bias", "alora_invocation_tokens", "layer_replication", "use_bdlora", "use_qalora")
"""Settings of a LoRA adapter that change what it does, and that earlier versions of vLLM leave unread, without a word."""
PLAIN_BEGINNINGS = ("gaussian", "eva", "orthogonal")
"""Words of `init_lora_weights` that leave the model's own weights as they are."""
_HINT = "vLLM's own log, above, says why; where memory is short, lower gpu_memory_utilization, max_model_len or max_num_seqs"


class CannotStart(Exception):
    """vLLM is not started, for this reason; `hint` says what to do."""

    def __init__(self, words: str, hint: str) -> None:
        super().__init__(words, hint)
        self.hint = hint

    def __str__(self) -> str:
        return str(self.args[0])


def check_version() -> None:
    """Raise `CannotStart` where the installed vLLM is none that pipegen was run on: its parts have other names and rules."""
    import vllm

    found = re.match(r"(\d+)\.(\d+)", str(vllm.__version__))
    if found is None or not LOWEST <= (int(found[1]), int(found[2])) <= HIGHEST:
        low, high = (".".join(map(str, version)) for version in (LOWEST, HIGHEST))
        words = f"vLLM {vllm.__version__} is installed, and pipegen runs on {low} to {high}"
        raise CannotStart(words, f'install one of these: pip install "vllm>={low},<{HIGHEST[0]}.{HIGHEST[1] + 1}"; or ask a server of yours with vllm_server')


def check_files(load: ModelLoadConfig, source: str) -> None:
    """Raise `CannotStart` where a file of the weights, or of the adapter, is missing or not whole. What is no folder is left to vLLM."""
    for folder in (Path(source), Path(load.adapter or source).expanduser()):
        found = broken_file(weight_files(folder)) if folder.is_dir() else None
        if found is not None:
            raise CannotStart(*found)


def unread_settings(config: Mapping[str, Any], known: Collection[str]) -> list[str]:
    """The settings of an adapter that change what it does, and are not among those that vLLM reads.

    >>> unread_settings({"r": 8, "rank_pattern": {"q_proj": 16}, "lora_bias": False}, {"r", "lora_alpha"})
    ['rank_pattern']
    """
    begun = config.get("init_lora_weights")
    changed = [
        *(name for name in ADAPTER_SETTINGS if config.get(name)),
        *(["init_lora_weights"] if isinstance(begun, str) and begun not in PLAIN_BEGINNINGS else []),
    ]
    return [name for name in changed if name not in known]


def check_adapter_settings(load: ModelLoadConfig) -> None:
    """Raise `CannotStart` where the installed vLLM would leave settings of the adapter unread, and so give other answers than the adapter's."""
    if load.adapter is None:
        return
    from vllm.lora.peft_helper import PEFTHelper

    unread = unread_settings(adapter_config(str(load.adapter)), {field.name for field in dataclasses.fields(PEFTHelper)})
    if unread:
        words = f"this version of vLLM does not read {', '.join(unread)} of the adapter {load.adapter!r}"
        raise CannotStart(words, "install a newer vLLM, or take the adapter with the Hugging Face engine")


@contextlib.contextmanager
def starting(load: ModelLoadConfig, source: str) -> Iterator[None]:
    """Around code that starts vLLM: whatever it raises is one failure of the whole call; see `load_failed`. What pipegen refuses comes through."""
    try:
        yield
    except (CallFailed, InvalidField, MissingExtra):
        raise
    except Exception as raised:  # vLLM and what it stands on raise anything while they start
        raise load_failed(load, "cannot start vLLM on", raised, source, hint=getattr(raised, "hint", _HINT)) from raised
