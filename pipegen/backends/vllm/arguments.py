"""What vLLM's engine is started with.

Which arguments the installed vLLM takes is read from that vLLM, never guessed from its version: an argument that it does not have is refused before
anything is loaded, with the nearest one.
"""

# vLLM need not be installed where types are checked.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipegen.backends.checkpoint.adapters import adapter_config, check_adapter, largest_rank
from pipegen.backends.checkpoint.checkpoint import Checkpoint
from pipegen.backends.checkpoint.locate import check_adapter_folder
from pipegen.engines.settings import settings_of
from pipegen.records.fields import InvalidField, UnknownField, nearest
from pipegen.records.secret import revealed

__all__ = ["adapter_arguments", "argument_names", "check_arguments", "engine_arguments", "image_limit"]

OWN = ("model", "revision", "tokenizer_revision", "dtype", "trust_remote_code", "generation_config", "logprobs_mode", "skip_tokenizer_init", "enable_lora")
"""What pipegen itself says to vLLM: from the fields of `ModelLoadConfig`, or because the engines would not agree otherwise."""
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""The sizes that vLLM makes room for in a LoRA adapter."""


@functools.cache
def argument_names() -> frozenset[str]:
    """The engine arguments of the installed vLLM.

    They are read from the source of `EngineArgs`, which takes no time; importing vLLM takes many seconds, and is done only where that source is not
    where it was looked for.
    """
    package = importlib.util.find_spec("vllm")
    for folder in (package.submodule_search_locations if package is not None else None) or ():
        source = Path(folder) / "engine" / "arg_utils.py"
        if source.is_file():
            for node in ast.parse(source.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef) and node.name == "EngineArgs":
                    return frozenset(item.target.id for item in node.body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name))
    import dataclasses

    from vllm import EngineArgs

    return frozenset(field.name for field in dataclasses.fields(EngineArgs))


def check_arguments(checkpoint: Checkpoint) -> None:
    """Refuse what vLLM does not take. Raises `InvalidField` for a setting without a meaning here, `UnknownField` for an argument vLLM does not have."""
    load = checkpoint.load
    if load.adapter is not None:
        check_adapter_folder(str(load.adapter))
    _ = settings_of(load)
    for name, value in load.engine_kwargs.items():
        if name in OWN:
            raise InvalidField(f"ModelLoadConfig.engine_kwargs takes no {name!r} for backend 'vllm': pipegen says it itself")
        if name == "max_model_len" and not (type(value) is int and value > 0):
            raise InvalidField(f"ModelLoadConfig.engine_kwargs: max_model_len is a number of tokens above 0, known before vLLM starts, not {value!r:.80}")
        if name not in argument_names():
            raise UnknownField(f"ModelLoadConfig.engine_kwargs: the installed vLLM has no engine argument {name!r}{nearest(name, argument_names())}")


def image_limit(checkpoint: Checkpoint) -> int | None:
    """How many images a request may hold, as `limit_mm_per_prompt` says; None where it does not say."""
    limit = (checkpoint.load.engine_kwargs.get("limit_mm_per_prompt") or {}).get("image")
    if isinstance(limit, Mapping):
        limit = limit.get("count")
    return limit if isinstance(limit, int) else None


def engine_arguments(checkpoint: Checkpoint) -> dict[str, Any]:
    """The arguments of `EngineArgs`, everything that decides about the output said explicitly. Raises as `check_arguments` does."""
    check_arguments(checkpoint)
    load = checkpoint.load
    arguments: dict[str, Any] = {
        "model": checkpoint.source,
        "dtype": checkpoint.dtype,  # what `auto` means is for pipegen to say: vLLM would make bfloat16 of float32
        "trust_remote_code": load.trust_remote_code,
        "generation_config": "vllm",  # that is: nothing of the checkpoint's; options are resolved by pipegen
        "logprobs_mode": "raw_logprobs",  # the model's own, before temperature, penalties and filters
    }
    if load.revision is not None:
        arguments |= {"revision": load.revision, "tokenizer_revision": load.revision}
    if load.batch_size is not None:
        arguments["max_num_seqs"] = load.batch_size
    if "disable_log_stats" in argument_names():
        arguments["disable_log_stats"] = True
    if checkpoint.is_vision_model and not checkpoint.takes_images:
        arguments["limit_mm_per_prompt"] = {"image": 0, "video": 0}
    return {**arguments, **revealed(load.engine_kwargs)}


def adapter_arguments(checkpoint: Checkpoint) -> dict[str, Any]:
    """The arguments that make room for the adapter; none where there is none. Raises `BadAdapter` where it is not the model's, as a whole."""
    if checkpoint.load.adapter is None:
        return {}
    adapter = str(checkpoint.load.adapter)
    check_adapter(checkpoint, adapter)
    rank = largest_rank(adapter_config(adapter))
    return {"enable_lora": True, "max_lora_rank": next((size for size in RANKS if size >= rank), rank)}
