"""The keys that a backend takes in a file, besides the generation options: one table for reading, for the JSON Schema and for the documentation.

A test holds it beside the constructors in `pipegen.backends`: a key is an argument of the constructor that carries it out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pipegen.records.fields import Check, boolean, checks_of, integer, mapping, non_empty_string, number, one_of, with_schema
from pipegen.records.results import ModelLoadConfig

__all__ = ["ALIASES", "CONSTRUCTORS", "KEYS", "TYPES", "Key", "keys_of", "legacy_key_hint"]

TYPES: Mapping[str, str] = {
    "hf": "Hugging Face transformers, in this process",
    "vllm": "vLLM: with `base_url` the chat route of a server, without it in this process",
    "vllm_server": "a vLLM server, by token ids",
    "sglang": "the chat route of an SGLang server",
    "sglang_server": "an SGLang server, by token ids",
    "openai": "the chat route of any server that speaks OpenAI's",
    "openai_server": "the same as `openai`",
    "chatcompletion": "the same as `openai`",
}
"""What `type` takes."""
CONSTRUCTORS = ("hf", "vllm", "vllm_server", "sglang_server", "openai_server")
"""The functions of `pipegen.backends` that carry the types out."""
ALIASES: Mapping[str, str] = {
    "max_tokens": "max_new_tokens",
    "max_completion_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "n": "samples",
    "chat_template_kwargs": "template_kwargs",
    "guided_json": "json_schema",
    "guided_regex": "regex",
    "guided_choice": "choice",
}
"""Names that servers have for generation options, or had in earlier versions."""
_TOOLS, _TEAM = "pipegen has no tools of its own", "pipegen asks each model once, by itself"
_FOREIGN: Mapping[str, str] = {
    **dict.fromkeys(("cwd", "mcp_servers", "custom_tools", "allowed_tools", "exclude_tools", "upload_files", "permission_mode"), _TOOLS),
    **dict.fromkeys(("enable_web_search", "enable_code_interpreter", "enable_code_execution", "enable_mcp_command_line"), _TOOLS),
    **dict.fromkeys(("enable_image_generation", "enable_audio_generation", "enable_video_generation", "enable_file_generation"), _TOOLS),
    "command_line_execution_mode": _TOOLS,
    **dict.fromkeys(("orchestrator", "timeout_settings", "memory", "display"), _TEAM),
    **dict.fromkeys(("text", "reasoning"), "this is of OpenAI's Responses, and pipegen speaks Chat Completions, which takes reasoning_effort"),
}
"""Keys of the original system that have nothing here to act on, and why."""


class Key(NamedTuple):
    """One key: its check, what it says, and the constructors that take it."""

    check: Check
    words: str
    constructors: tuple[str, ...]


_LOADED, _SERVERS, _CHAT = ("hf", "vllm"), ("vllm_server", "sglang_server", "openai_server"), ("openai_server",)
_RENDERED = ("hf", "vllm", "vllm_server", "sglang_server")
"""Those that need the checkpoint here, since pipegen renders."""


def _any_text(value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError("a string")
    return value


def _address(value: Any) -> Any:
    return non_empty_string(value)


def _headers(value: Any) -> Any:
    kept = mapping(value)
    if not all(isinstance(one, str) for one in kept.values()):
        raise ValueError("a mapping of strings")
    return kept


with_schema(_any_text, {"type": "string"})
with_schema(_address, {"type": "string", "pattern": r"^\s*[Hh][Tt][Tt][Pp][Ss]?://.|\$\{"})
with_schema(_headers, {"type": "object", "additionalProperties": {"type": "string"}})
_LOAD: Mapping[str, Check] = checks_of(ModelLoadConfig)

KEYS: Mapping[str, Key] = {
    "variant": Key(_LOAD["variant"], "Load it as a text or as a vision model; `auto` finds out.", _RENDERED),
    "dtype": Key(_LOAD["dtype"], "`auto` (the checkpoint's own), `bfloat16`, `float16` or `float32`.", _LOADED),
    "device": Key(non_empty_string, "Such as `cuda:0` or `cpu`.", ("hf",)),
    "device_map": Key(non_empty_string, "Such as `auto`: spread the model over devices.", ("hf",)),
    "attn_implementation": Key(non_empty_string, "Such as `sdpa` or `eager`.", ("hf",)),
    "batch_size": Key(integer(low=1), "Rows that run side by side.", ("hf",)),
    "compile": Key(boolean, "Compile the steps with `torch.compile`.", ("hf",)),
    "image_memory_bytes": Key(integer(low=0), "Memory for images made ready ahead or kept for when they come again, in bytes; 0 is none.", ("hf",)),
    "revision": Key(non_empty_string, "The hub's revision.", _RENDERED),
    "adapter": Key(non_empty_string, "A LoRA adapter: folder or hub name.", _LOADED),
    "trust_remote_code": Key(boolean, "Run code that comes with the model.", _RENDERED),
    "engine_kwargs": Key(mapping, "Further arguments of the engine.", _LOADED),
    "tensor_parallel_size": Key(integer(low=1), "GPUs that share the model.", ("vllm",)),
    "gpu_memory_utilization": Key(number(above=0, high=1), "The share of the GPU's memory that vLLM takes.", ("vllm",)),
    "kv_cache_memory_bytes": Key(integer(low=1), "Memory for the cache, in bytes.", ("vllm",)),
    "max_model_len": Key(integer(low=1), "Prompt and answer together, in tokens.", ("vllm",)),
    "max_num_seqs": Key(integer(low=1), "Rows that run side by side.", ("vllm",)),
    "enforce_eager": Key(boolean, "No CUDA graphs.", ("vllm",)),
    "enable_prefix_caching": Key(boolean, "Share the cache of equal beginnings.", ("vllm",)),
    "limit_mm_per_prompt": Key(mapping, "Images in one request: `{image: 4}`.", ("vllm",)),
    "base_url": Key(_address, "The server's address, with or without `/v1`; `null` is the engine's own port on this machine.", _SERVERS),
    "api_key": Key(_any_text, "The key, best as `${NAME}` from the environment; empty is not said.", _SERVERS),
    "headers": Key(_headers, "Further HTTP headers; `${NAME}` is read from the environment.", _SERVERS),
    "timeout": Key(number(above=0), "Seconds for one request, attempts and waits and all.", _SERVERS),
    "max_in_flight": Key(integer(low=1), "Requests at the server at a time.", _SERVERS),
    "retries": Key(integer(low=0), "How often one request is sent again at most, where that is safe.", _SERVERS),
    "batch_budget": Key(number(above=0), "Seconds for a whole call, attempts and waits and all.", _SERVERS),
    "served_model_name": Key(non_empty_string, "The name that the server knows the model by.", _SERVERS),
    "dialect": Key(one_of("vllm", "sglang", "plain"), "Whose extensions the server takes; found by the port where it is not said.", _CHAT),
    "server_limit": Key(boolean, "Where nothing says how long an answer may be, the server's own limit holds; with `false`, pipegen's default.", _CHAT),
    "separate_reasoning": Key(boolean, "Ask SGLang for the reasoning apart from the answer.", _CHAT),
    "extra_body": Key(mapping, "Merged into the body of each request, deeply.", _SERVERS),
}


def legacy_key_hint(name: str, beside: Iterable[str]) -> str:
    """Why a key of the original system is not taken, with those beside it that are not either; empty for any other key.

    >>> legacy_key_hint("cwd", ["model", "cwd", "mcp_servers"])
    'pipegen has no tools of its own: take it out, and mcp_servers'
    """
    others = "".join(f", and {other}" for other in beside if other in _FOREIGN and other != name)
    return f"{_FOREIGN[name]}: take it out{others}" if name in _FOREIGN else ""


def keys_of(constructor: str) -> Mapping[str, Key]:
    """The keys that a constructor takes.

    >>> "base_url" in keys_of("vllm_server"), "base_url" in keys_of("hf")
    (True, False)
    """
    return {name: key for name, key in KEYS.items() if constructor in key.constructors}
