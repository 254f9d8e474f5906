"""Routes through an engine in this process. These functions have the names of the packages beside them, where their engines are."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pipegen.backends.keywords import named_settings
from pipegen.records.results import ModelLoadConfig

if TYPE_CHECKING:
    from pipegen.drivers.route import Route

__all__ = ["hf", "vllm"]


@named_settings
def hf(
    model: str | os.PathLike[str],
    *,
    variant: str = "auto",
    dtype: str = "auto",
    device: str | None = None,
    device_map: str | None = None,
    attn_implementation: str | None = None,
    trust_remote_code: bool = False,
    revision: str | None = None,
    adapter: str | os.PathLike[str] | None = None,
    batch_size: int | None = None,
    compile: bool = False,
    image_memory_bytes: int | None = None,
    engine_kwargs: Mapping[str, Any] | None = None,
) -> Route:
    """A route through Hugging Face transformers, in this process: the safe default.

    `model` is a local folder, a hub name, or `embedded`; `batch_size` is how many rows run side by side (32); `compile` is for long jobs: the first steps
    wait for `torch.compile`, the others take less time; `image_memory_bytes` is the memory for images made ready ahead or kept for when they come again
    (256 MiB; 0 is none); `engine_kwargs` go to `from_pretrained`. Raises `InvalidField` for a bad setting, and `MissingExtra` (an ImportError), which says
    what to install, where a package is missing.

    >>> route = hf("Qwen/Qwen3-4B")  # doctest: +SKIP
    """
    said: dict[str, Any] = {
        "model": model,
        "variant": variant,
        "dtype": dtype,
        "device": device,
        "device_map": device_map,
        "attn_implementation": attn_implementation,
    }
    said |= {"trust_remote_code": trust_remote_code, "revision": revision, "adapter": adapter, "batch_size": batch_size}
    said |= {"compile": compile, "image_memory_bytes": image_memory_bytes, "engine_kwargs": engine_kwargs or {}}
    return _route_of(ModelLoadConfig(backend="hf", **said))


@named_settings
def vllm(
    model: str | os.PathLike[str],
    *,
    tensor_parallel_size: int | None = None,
    gpu_memory_utilization: float | None = None,
    kv_cache_memory_bytes: int | None = None,
    max_model_len: int | None = None,
    max_num_seqs: int | None = None,
    dtype: str = "auto",
    enforce_eager: bool | None = None,
    enable_prefix_caching: bool | None = None,
    limit_mm_per_prompt: Mapping[str, int] | None = None,
    trust_remote_code: bool = False,
    variant: str = "auto",
    revision: str | None = None,
    adapter: str | os.PathLike[str] | None = None,
    engine_kwargs: Mapping[str, Any] | None = None,
) -> Route:
    """A route through vLLM, in this process, without a server.

    `model` is a local folder, a hub name, or `embedded`. What is None is left to vLLM; further arguments of its `EngineArgs` go to `engine_kwargs`.
    Raises `InvalidField` for a bad setting, `UnknownField` with the nearest one for an argument that the installed vLLM does not have, and
    `MissingExtra` (an ImportError), which says what to install, where vLLM is missing.
    """
    asked: dict[str, Any] = {"tensor_parallel_size": tensor_parallel_size, "gpu_memory_utilization": gpu_memory_utilization}
    asked |= {"kv_cache_memory_bytes": kv_cache_memory_bytes, "max_model_len": max_model_len, "max_num_seqs": max_num_seqs}
    asked |= {"enforce_eager": enforce_eager, "enable_prefix_caching": enable_prefix_caching, "limit_mm_per_prompt": limit_mm_per_prompt}
    arguments = {name: value for name, value in asked.items() if value is not None} | dict(engine_kwargs or {})
    said: dict[str, Any] = {
        "model": model,
        "variant": variant,
        "dtype": dtype,
        "trust_remote_code": trust_remote_code,
        "revision": revision,
        "adapter": adapter,
    }
    return _route_of(ModelLoadConfig(backend="vllm", engine_kwargs=arguments, **said))


def _route_of(config: ModelLoadConfig) -> Route:
    from pipegen.backends import route_of  # which names the functions above

    return route_of(config)
