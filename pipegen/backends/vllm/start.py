"""Starting vLLM: which versions are taken, which files must be whole, and what its failures
mean.
"""

# vLLM need not be installed where types are checked.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import importlib.util
import os
import re
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pipegen.backends.checkpoint.adapters import (
    adapt_head,
    adapter_config,
    check_adapter,
    largest_rank,
)
from pipegen.backends.checkpoint.checkpoint import Checkpoint
from pipegen.backends.checkpoint.families import family_of
from pipegen.backends.checkpoint.load_errors import broken_file, loading, weight_files
from pipegen.backends.checkpoint.locate import adapters_of, check_adapters
from pipegen.backends.vllm.corrections import corrections, with_corrections
from pipegen.backends.vllm.vllm_sampling import LOGPROBS_OF
from pipegen.core.errors import UnsupportedOption
from pipegen.core.names import InvalidField, nearest
from pipegen.engines.settings import ModelLoadConfig, settings_of
from pipegen.records.fields import UnknownField
from pipegen.records.secret import revealed

LOWEST, HIGHEST = (0, 27), (0, 33)
"""The lowest and the newest vLLM that is taken, with what lies between them. The tests of the real
engine were run on the lowest and on 0.32; 0.33 was read.
"""
TIMES_OF_FRAMES = (0, 32)
"""The lowest vLLM that was seen to tell Qwen2.5-VL the times of frames; 0.27 does not."""
ADAPTER_SETTINGS = (
    "rank_pattern",
    "alpha_pattern",
    "lora_bias",
    "alora_invocation_tokens",
    "layer_replication",
    "use_bdlora",
    "use_qalora",
)
"""Settings of a LoRA adapter that change what it does, and that earlier versions of vLLM leave
unread, without a word.
"""
PLAIN_BEGINNINGS = ("gaussian", "eva", "orthogonal")
"""Words of `init_lora_weights` that leave the model's own weights as they are."""
_HINT = (
    "vLLM's own log, above, says why; where memory is short, lower gpu_memory_utilization,"
    " max_model_len or max_num_seqs"
)


class CannotStart(Exception):
    """vLLM is not started, for this reason; `hint` says what to do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message, hint)
        self.hint = hint

    def __str__(self) -> str:
        return str(self.args[0])


def installed_version() -> tuple[int, int] | None:
    """The version of the installed vLLM; None where it names none."""
    import vllm

    match = re.match(r"(\d+)\.(\d+)", str(vllm.__version__))
    return None if match is None else (int(match[1]), int(match[2]))


def check_version() -> None:
    """Raise `CannotStart` where the installed vLLM is none that pipegen was run on: its parts have
    other names and rules.
    """
    import vllm

    installed = installed_version()
    if installed is None or not LOWEST <= installed <= HIGHEST:
        low, high = (".".join(map(str, version)) for version in (LOWEST, HIGHEST))
        message = f"vLLM {vllm.__version__} is installed, and pipegen runs on {low} to {high}"
        raise CannotStart(
            message,
            f'install one of these: pip install "vllm>={low},<{HIGHEST[0]}.{HIGHEST[1] + 1}"; or'
            " ask a server of yours with vllm_server",
        )


INVARIANT = "VLLM_BATCH_INVARIANT"
"""The variable of the environment by which vLLM computes each row independently of its batch."""


_SET_HERE: set[str] = set()
"""That variable, once it was set here: vLLM was imported in that mode, and has it to the end of the
process.
"""


def use_batch_invariance(load: ModelLoadConfig) -> None:
    """Where `deterministic` is set, let vLLM be imported in its batch-invariant mode. Raises
    `CannotStart` where it was imported in the other mode, since a process has one, and where the
    device has no such mode: vLLM itself fails late there, in a kernel.
    """
    if not load.deterministic:
        if _SET_HERE:
            raise CannotStart(
                "vLLM has its batch-invariant mode in this process, since a route with"
                " deterministic was opened, and this route has no deterministic",
                "set deterministic for this route too, or open it in another process",
            )
        return
    imported, given = "vllm" in sys.modules, os.environ.get(INVARIANT)
    if not imported:
        os.environ[INVARIANT] = "1"
    import vllm
    from vllm.platforms import current_platform

    if current_platform.is_cuda() and current_platform.has_device_capability(80):
        if given == "1":
            return
        if imported:
            raise CannotStart(
                f"vLLM was imported in this process without {INVARIANT}, and deterministic is set",
                f"set {INVARIANT}=1 before Python starts",
            )
        _SET_HERE.add(INVARIANT)
        return
    if given is None:
        os.environ.pop(INVARIANT, None)
    else:
        os.environ[INVARIANT] = given
    raise CannotStart(
        f"vLLM {vllm.__version__} computes rows independently of their batch on NVIDIA GPUs of compute"
        f" capability 8.0 or more, and not on this device ({current_platform.device_type})",
        "use hf, or leave deterministic out",
    )


def leaves_out_times(model_type: str) -> str:
    """That the installed vLLM does not tell a model of this type the times of frames; empty where
    it does. Positions of Qwen2.5-VL depend on them, and vLLM 0.27 takes a fixed rate.
    """
    import vllm

    installed = installed_version()
    needs_times = family_of(model_type).times_of_frames
    if not needs_times or installed is None or installed >= TIMES_OF_FRAMES:
        return ""
    needed = ".".join(map(str, TIMES_OF_FRAMES))
    return (
        f"vLLM {vllm.__version__} leaves out the times of frames for {model_type}: install vLLM"
        f" {needed}"
    )


def check_files(load: ModelLoadConfig, source: str) -> None:
    """Raise `CannotStart` where a file of the weights, or of the adapter, is missing or not whole.
    What is no folder is left to vLLM.
    """
    folders = (source, *adapters_of(load).values())
    for folder in (Path(folder).expanduser() for folder in folders):
        broken = broken_file(weight_files(folder)) if folder.is_dir() else None
        if broken is not None:
            raise CannotStart(*broken)


def unread_settings(config: Mapping[str, object], read_names: Collection[str]) -> list[str]:
    """The settings of an adapter that change what it does, and are not among those that vLLM reads.

    >>> unread_settings(
    ...     {"r": 8, "rank_pattern": {"q_proj": 16}, "lora_bias": False}, {"r", "lora_alpha"}
    ... )
    ['rank_pattern']
    """
    initial = config.get("init_lora_weights")
    changed = [
        *(name for name in ADAPTER_SETTINGS if config.get(name)),
        *(
            ["init_lora_weights"]
            if isinstance(initial, str) and initial not in PLAIN_BEGINNINGS
            else []
        ),
    ]
    return [name for name in changed if name not in read_names]


def check_adapter_settings(load: ModelLoadConfig) -> None:
    """Raise `CannotStart` where the installed vLLM would leave settings of an adapter unread, and
    so give other answers than the adapter's.
    """
    for adapter in adapters_of(load).values():
        config = adapter_config(adapter)
        if config.get("use_dora"):
            raise CannotStart(
                f"the adapter {adapter!r} is DoRA (use_dora), which vLLM does not read",
                "use it with the Hugging Face engine, or merge it into the model (merge_and_unload)",
            )
        from vllm.lora.peft_helper import PEFTHelper

        unread = unread_settings(config, {field.name for field in dataclasses.fields(PEFTHelper)})
        if unread:
            raise CannotStart(
                f"this version of vLLM does not read {', '.join(unread)} of the adapter {adapter!r}",
                "install a newer vLLM, or use the adapter with the Hugging Face engine",
            )


def unscored(load: ModelLoadConfig) -> UnsupportedOption | None:
    """Why vLLM, which is imported already, does not score where it has adapters: on a CPU its engine
    ends, and elsewhere what an adapter adds to the last layer is left out of the log probabilities
    of a prompt (vllm-project/vllm issues 29955 and 51594; found with 0.32).
    """
    adapters = adapters_of(load).values()
    if not adapters:
        return None
    from vllm.platforms import current_platform

    if not (current_platform.is_cpu() or adapt_head(adapters)):
        return None
    return UnsupportedOption(
        "vLLM gives no log probabilities of given tokens on a CPU where it has adapters, nor where"
        " one of them has weights for the last layer",
        option="continuation",
        hint="score with hf",
    )


def starting(load: ModelLoadConfig, source: str) -> contextlib.AbstractContextManager[None]:
    """Around code that starts vLLM: whatever it raises is one failure of the whole call; see
    `loading`.
    """
    return loading(load, "vLLM", source, hint=_HINT, failed="cannot start {} on")


def refusals() -> tuple[type[Exception], ...]:
    """What vLLM raises when it does not take one request; its own hierarchy stands beside
    ValueError in the versions that have one.
    """
    return (ValueError, *_exceptions("VLLMClientError", "VLLMValidationError"))


def _exceptions(*names: str) -> list[type[Exception]]:
    """Those of vLLM's own exceptions that the installed version has."""
    from vllm import exceptions

    return [getattr(exceptions, name) for name in names if hasattr(exceptions, name)]


def deaths() -> tuple[type[Exception], ...]:
    """What vLLM raises when a step failed, and with it the engine."""
    import torch
    from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

    ends = EngineDeadError, EngineGenerateError, torch.OutOfMemoryError, torch.AcceleratorError
    return (*_exceptions("VLLMServerError"), *ends)


OWN = (
    "model",
    "revision",
    "tokenizer_revision",
    "dtype",
    "trust_remote_code",
    "generation_config",
    "skip_tokenizer_init",
    "enable_lora",
)
"""What pipegen itself says to vLLM: from the fields of `ModelLoadConfig`, or because the engines
would not agree otherwise.
"""
SETTINGS = ("check_lengths",)
"""What is for pipegen, and not for vLLM."""
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""The sizes that vLLM makes room for in a LoRA adapter."""


SIDE_BY_SIDE = 8
"""Adapters whose rows vLLM runs in one step at most, unless `max_loras` says otherwise."""


@functools.cache
def argument_names() -> frozenset[str]:
    """The engine arguments of the installed vLLM.

    They are read from the source of `EngineArgs`, which takes no time. Importing vLLM takes many
    seconds, and is done only where that source is elsewhere.
    """
    package = importlib.util.find_spec("vllm")
    for folder in (package.submodule_search_locations if package is not None else None) or ():
        source = Path(folder) / "engine" / "arg_utils.py"
        if source.is_file():
            for node in ast.parse(source.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef) and node.name == "EngineArgs":
                    return frozenset(
                        item.target.id
                        for item in node.body
                        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
                    )
    from vllm import EngineArgs

    return frozenset(field.name for field in dataclasses.fields(EngineArgs))


def check_arguments(checkpoint: Checkpoint) -> None:
    """Refuse what vLLM does not take. Raises `InvalidField` for a setting without a meaning here,
    `UnknownField` for an argument vLLM does not have.
    """
    load = checkpoint.load
    check_adapters(load)
    _ = settings_of(load)
    for name, value in load.engine_kwargs.items():
        if name in OWN:
            raise InvalidField(
                f"ModelLoadConfig.engine_kwargs takes no {name!r} for backend 'vllm': pipegen sets"
                " it itself"
            )
        if name == "logprobs_mode" and value not in tuple(LOGPROBS_OF):
            raise InvalidField(
                "ModelLoadConfig.engine_kwargs: logprobs_mode is one of"
                f" {', '.join(LOGPROBS_OF)}, not {value!r:.80}"
            )
        if name == "max_model_len" and not (type(value) is int and value > 0):
            raise InvalidField(
                "ModelLoadConfig.engine_kwargs: max_model_len is a number of tokens above 0, known"
                f" before vLLM starts, not {value!r:.80}"
            )
        if name not in argument_names() and name not in SETTINGS:
            raise UnknownField(
                "ModelLoadConfig.engine_kwargs: the installed vLLM has no engine argument"
                f" {name!r}{nearest(name, argument_names())}"
            )


def image_limit(checkpoint: Checkpoint, kind: str = "image") -> int | None:
    """How many images, or videos, a request may hold, as `limit_mm_per_prompt` says; None where it
    does not say.
    """
    limit = (checkpoint.load.engine_kwargs.get("limit_mm_per_prompt") or {}).get(kind)
    if isinstance(limit, Mapping):
        limit = limit.get("count")
    return limit if isinstance(limit, int) else None


def engine_arguments(checkpoint: Checkpoint) -> dict[str, object]:
    """The arguments of `EngineArgs`, everything that decides about the output set explicitly.
    Raises as `check_arguments` does.
    """
    check_arguments(checkpoint)
    load = checkpoint.load
    arguments: dict[str, object] = {
        "model": checkpoint.source,
        # what `auto` means is for pipegen to say: vLLM would make bfloat16 of float32
        "dtype": checkpoint.dtype,
        "trust_remote_code": load.trust_remote_code,
        # that is: nothing of the checkpoint's; options are resolved by pipegen
        "generation_config": "vllm",
        # the model's own, unless `engine_kwargs` names the other mode
        "logprobs_mode": "raw_logprobs",
    }
    if load.revision is not None:
        arguments |= {"revision": load.revision, "tokenizer_revision": load.revision}
    if takes_grammars(load):
        arguments["structured_outputs_config"] = GRAMMARS
    if load.batch_size is not None:
        arguments["max_num_seqs"] = load.batch_size
    if "disable_log_stats" in argument_names():
        arguments["disable_log_stats"] = True
    if checkpoint.is_vision_model and not checkpoint.takes_images:
        arguments["limit_mm_per_prompt"] = {"image": 0, "video": 0}
    overrides = {
        name: value for name, value in revealed(load.engine_kwargs).items() if name not in SETTINGS
    }
    if takes_grammars(load) and "structured_outputs_config" in overrides:
        overrides["structured_outputs_config"] = {
            **GRAMMARS,
            **overrides["structured_outputs_config"],
        }
    changed = corrections(checkpoint.config, installed_version() or LOWEST)
    if changed:
        overrides["hf_overrides"] = with_corrections(changed, overrides.get("hf_overrides") or {})
    return {**arguments, **overrides}


GRAMMARS: Mapping[str, Any] = {"backend": "guidance"}
"""vLLM's settings for forms of answers, by default. With its own ("auto") the first row decides for
all which library has the forms of answers.
"""


def takes_grammars(load: ModelLoadConfig) -> bool:
    """Whether vLLM is given the form of an answer as pipegen's grammar. Not where a setting names
    another library than llguidance.
    """
    chosen = load.engine_kwargs.get("structured_outputs_config", {})
    return isinstance(chosen, Mapping) and chosen.get("backend", "guidance") == "guidance"


def adapter_arguments(checkpoint: Checkpoint) -> dict[str, object]:
    """The arguments that make room for the adapters; none where there are none. Raises `BadAdapter`
    where one is not the model's, as a whole.
    """
    adapters = [*adapters_of(checkpoint.load).values()]
    if not adapters:
        return {}
    for adapter in adapters:
        check_adapter(checkpoint, adapter)
    rank = max(largest_rank(adapter_config(adapter)) for adapter in adapters)
    return {
        "enable_lora": True,
        "max_lora_rank": next((size for size in RANKS if size >= rank), rank),
    }


def adapter_slots(load: ModelLoadConfig) -> dict[str, object]:
    """How many adapters vLLM holds for one step, where requests choose among several.

    On a CPU it gives rows without an adapter that of its last slot, so there one stays empty.
    """
    if not load.adapters:
        return {}
    from vllm.platforms import current_platform

    count = len(load.adapters)
    slots = count + 1 if current_platform.is_cpu() else min(count, SIDE_BY_SIDE)
    return {"max_loras": slots, "max_cpu_loras": max(slots, count)}
