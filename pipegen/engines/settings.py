"""The settings of every kind of engine: each is declared here once, with its type, its check, its
default and one line of help.

The functions of `pipegen.backends`, `ModelLoadConfig`, the flags of the command line, the keys of
chat files and their JSON Schema are made of these records. Each setting also says what of the
answers it `Changes`: a job's rows are known by the settings that change their answers.

>>> HFSettings("embedded", batch_size=8).batch_size
8
>>> sorted({*fields_of("vllm_server")} - {*fields_of("openai_server")})
['adapters', 'check_weights', 'deterministic', 'revision', 'trust_remote_code', 'variant']
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import os
from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from immutabledict import immutabledict

from pipegen.core import errors
from pipegen.core.names import InvalidField, nearest
from pipegen.records.engine_list import BACKENDS, DIALECTS, IN_PROCESS, Dialect
from pipegen.records.fields import (
    UnknownField,
    boolean,
    help_of,
    integer,
    mapping,
    metadata_of,
    non_empty_string,
    number,
    one_of,
    path,
    record,
    schema_of,
    tuple_of,
    with_schema,
)
from pipegen.records.secret import Secret, revealed, secretive

PathOrName: TypeAlias = str | os.PathLike[str]
_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_DTYPE = one_of("auto", *_DTYPES, *_DTYPES.values())
_ELSEWHERE = {
    "torch_dtype": "dtype",
    "fallback": "fallback_backend",
    **dict.fromkeys(("load_in_8bit", "load_in_4bit", "quantization_config"), "engine_kwargs"),
    **dict.fromkeys(("api_base", "openai_api_base", "azure_endpoint"), "base_url"),
    "openai_api_key": "api_key",
    **dict.fromkeys(("default_headers", "extra_headers"), "headers"),
    **dict.fromkeys(("max_retries", "num_retries"), "retries"),
    "request_timeout": "timeout",
    **dict.fromkeys(("max_concurrency", "max_parallel_requests"), "max_in_flight"),
    "rpm": "requests_per_minute",
    "tpm": "tokens_per_minute",
}
"""Other names for a setting: those of other libraries, and that of a flag."""
BESIDE: Mapping[str, str] = {"adapter": "adapters"}
"""Names of a setting and of an option: where both may be set, it is the option if that other setting
is given.
"""
_ERRORS = tuple(
    name
    for name in errors.__all__
    if isinstance(kind := getattr(errors, name), type) and issubclass(kind, errors.GenerationError)
)


def _dtype(value: object) -> object:
    name = _DTYPE(value)
    return _DTYPES.get(name, name)


def _address(value: object) -> object:
    return non_empty_string(value)


def _key(value: object) -> object:
    if not isinstance(value, (str, Secret)):
        raise ValueError("a string")
    return value if isinstance(value, Secret) else Secret(value) if value else None


def _headers(value: object) -> object:
    if not isinstance(value, Mapping) or not all(
        isinstance(entry, (str, Secret)) for entry in value.values()
    ):
        raise ValueError("a mapping of strings")
    return secretive({"headers": value})["headers"]


def _error(value: object) -> object:
    name = value.__name__ if isinstance(value, type) else value
    if name not in _ERRORS:
        raise ValueError(
            f"the name of an error{nearest(name, _ERRORS) if isinstance(name, str) else ''}"
        )
    return name


def _adapters(value: object) -> object:
    if not isinstance(value, Mapping) or not all(
        isinstance(name, str) and name.strip() for name in value
    ):
        raise ValueError("a mapping of names to folders or hub names")
    return immutabledict({name: path(entry) for name, entry in value.items()})


with_schema(_dtype, schema_of(_DTYPE))
with_schema(_address, {"type": "string", "pattern": r"^\s*[Hh][Tt][Tt][Pp][Ss]?://.|\$\{"})
with_schema(_key, {"type": "string"})
with_schema(_headers, {"type": "object", "additionalProperties": {"type": "string"}})
with_schema(_error, {"enum": list(_ERRORS)})
with_schema(_adapters, {"type": "object", "additionalProperties": {"type": "string"}})


def nearest_setting(name: str, names: Collection[str], alike: float = 0.6) -> str:
    """`; did you mean 'dtype'?` for a name that others have for a setting, else for the nearest of
    the known ones (see `nearest`); or nothing.
    """
    return (
        f"; did you mean {_ELSEWHERE[name]!r}?"
        if _ELSEWHERE.get(name, "") in names
        else nearest(name, names, alike)
    )


class Changes(enum.Enum):
    """What of the answers another value of a setting changes."""

    ANSWERS = "the value is part of the key of a job's rows, where it is not the default"
    MODEL = (
        "it says which model answers: that is part of the key, by its content where its files are"
        " here, and not by how it is called"
    )
    NOTHING = (
        "it only says where, how fast and how often the same is computed or asked: it is no part of"
        " the key"
    )


@record
class EngineSettings:
    """What the settings of every engine have."""

    __slots__ = ()
    rows: ClassVar[str] = "batch_size"
    """The setting that `batch_size` of `ModelLoadConfig` is."""
    unchanging: ClassVar[frozenset[str]] = frozenset()
    """The entries of `engine_kwargs` or `extra_body` that change nothing of the answers; every
    other entry changes them.
    """
    model: Annotated[
        PathOrName,
        path,
        Changes.MODEL,
        "A local folder, a hub name, or `embedded`; for a chat server, the name that it has there.",
    ] = dataclasses.field(kw_only=False)

    @classmethod
    def _hint_for(cls, name: str) -> str:
        settings = help_of(cls)
        if takers := [backend for backend in SETTINGS if name in fields_of(backend)]:
            return f": it is a setting of {', '.join(takers)}"
        return nearest_setting(name, settings) or (
            "; arguments of the engine itself go to engine_kwargs"
            if "engine_kwargs" in settings
            else ""
        )


@record
class CheckpointSettings(EngineSettings):
    """How a checkpoint is read."""

    __slots__ = ()
    variant: Annotated[
        Literal["auto", "text", "vlm"],
        one_of("auto", "text", "vlm"),
        Changes.ANSWERS,
        "Load it as a text or as a vision model; `auto` finds out.",
    ] = "auto"
    revision: Annotated[str | None, non_empty_string, Changes.MODEL, "The hub's revision."] = None
    trust_remote_code: Annotated[
        bool, boolean, Changes.ANSWERS, "Run code that comes with the model."
    ] = False
    check_weights: Annotated[
        bool,
        boolean,
        Changes.MODEL,
        "Tell models apart by every byte of their files. Set it from the start of a job.",
    ] = False
    adapters: Annotated[
        Mapping[str, PathOrName],
        _adapters,
        Changes.MODEL,
        "LoRA adapters that requests choose by name, with the option `adapter`: folders or hub names."
        " A server has loaded them under these names.",
    ] = immutabledict()
    deterministic: Annotated[
        bool,
        boolean,
        Changes.ANSWERS,
        "Answers do not depend on their batch, in any dtype: slower on `hf`, and refused where an"
        " engine cannot.",
    ] = False


@record
class WeightSettings(CheckpointSettings):
    """How weights are loaded in this process."""

    __slots__ = ()
    dtype: Annotated[
        str,
        _dtype,
        Changes.ANSWERS,
        "`auto` (the checkpoint's own), `bfloat16`, `float16` or `float32`.",
    ] = "auto"
    adapter: Annotated[
        PathOrName | None, path, Changes.MODEL, "A LoRA adapter: folder or hub name (needs peft)."
    ] = None
    engine_kwargs: Annotated[
        Mapping[str, Any],
        secretive,
        Changes.ANSWERS,
        "Further arguments of the engine. Keys and tokens among them are not shown.",
    ] = immutabledict()


@record
class HFSettings(WeightSettings):
    """Hugging Face transformers, in this process: the safe default. `engine_kwargs` go to
    `from_pretrained`.
    """

    unchanging: ClassVar[frozenset[str]] = frozenset(
        [
            "cache_dir",
            "force_download",
            "local_files_only",
            "low_cpu_mem_usage",
            "max_memory",
            "offload_buffers",
            "offload_folder",
            "offload_state_dict",
            "proxies",
            "token",
        ]
    )

    device: Annotated[
        str | None, non_empty_string, Changes.NOTHING, "Such as `cuda:0` or `cpu`."
    ] = None
    device_map: Annotated[
        str | None,
        non_empty_string,
        Changes.NOTHING,
        "Such as `auto`: spread the model over devices.",
    ] = None
    attn_implementation: Annotated[
        str | None, non_empty_string, Changes.ANSWERS, "Such as `sdpa` or `eager`."
    ] = None
    batch_size: Annotated[
        int | None,
        integer(low=1),
        Changes.NOTHING,
        "Sequences that run side by side. Default: 32, or up to 64 where prompts share a prefix and answers are short.",
    ] = None
    compile: Annotated[
        bool, boolean, Changes.NOTHING, "Compile the steps with `torch.compile`: for long jobs."
    ] = False
    image_memory_bytes: Annotated[
        int | None,
        integer(low=0),
        Changes.NOTHING,
        "Memory for prepared images, in bytes; 0 is none. Default: 256 MiB.",
    ] = None
    prefix_memory_bytes: Annotated[
        int | None,
        integer(low=0),
        Changes.NOTHING,
        "Memory for the prefix cache, in bytes; 0 turns it off. Default: 1 GiB.",
    ] = None
    self_check: Annotated[
        bool,
        boolean,
        Changes.NOTHING,
        "Compare the first steps of a model that is loaded with transformers' plain forward.",
    ] = True


@record
class VLLMSettings(WeightSettings):
    """vLLM, in this process, without a server. What is None is left to vLLM; `engine_kwargs` are
    further arguments of its `EngineArgs`.
    """

    rows: ClassVar[str] = "max_num_seqs"
    """How many rows vLLM runs side by side, where a setting says so."""
    unchanging: ClassVar[frozenset[str]] = frozenset(
        [
            "cpu_offload_gb",
            "data_parallel_size",
            "disable_log_stats",
            "distributed_executor_backend",
            "download_dir",
            "enable_chunked_prefill",
            "hf_token",
            "max_num_batched_tokens",
            "max_parallel_loading_workers",
            "pipeline_parallel_size",
            "swap_space",
        ]
    )
    tensor_parallel_size: Annotated[
        int | None, integer(low=1), Changes.NOTHING, "GPUs that share the model."
    ] = None
    gpu_memory_utilization: Annotated[
        float | None,
        number(above=0, high=1),
        Changes.NOTHING,
        "The share of the GPU's memory that vLLM takes.",
    ] = None
    kv_cache_memory_bytes: Annotated[
        int | None, integer(low=1), Changes.NOTHING, "Memory for the cache, in bytes."
    ] = None
    kv_cache_dtype: Annotated[
        str | None,
        non_empty_string,
        Changes.ANSWERS,
        "The type of the cache's entries, such as `fp8` (less memory, other answers).",
    ] = None
    max_model_len: Annotated[
        int | None, integer(low=1), Changes.ANSWERS, "Prompt and answer together, in tokens."
    ] = None
    max_num_seqs: Annotated[
        int | None, integer(low=1), Changes.NOTHING, "Sequences that run side by side."
    ] = None
    enforce_eager: Annotated[bool | None, boolean, Changes.NOTHING, "No CUDA graphs."] = None
    enable_prefix_caching: Annotated[
        bool | None, boolean, Changes.NOTHING, "Use vLLM's prefix cache."
    ] = None
    limit_mm_per_prompt: Annotated[
        Mapping[str, Any] | None, mapping, Changes.ANSWERS, "Images in one request: `{image: 4}`."
    ] = None
    check_lengths: Annotated[
        bool | None,
        boolean,
        Changes.NOTHING,
        "Compare vLLM with transformers at long lengths first, on a small model. Default: where "
        "vLLM computes in this process.",
    ] = None


@record
class ServerSettings:
    """How a server is asked. No repr shows the key or the headers, and they do not pickle."""

    rows: ClassVar[str] = "max_in_flight"
    unchanging: ClassVar[frozenset[str]] = frozenset(
        [
            "cache_salt",
            "metadata",
            "priority",
            "prompt_cache_key",
            "request_id",
            "rid",
            "safety_identifier",
            "user",
        ]
    )
    base_url: Annotated[
        str | None,
        _address,
        Changes.MODEL,
        "The server's address, with or without `/v1`. Default: the engine's own port on this "
        "machine.",
    ] = None
    api_key: Annotated[
        str | Secret | None,
        _key,
        Changes.NOTHING,
        "The key, in files best as `${NAME}`. Default: that of the engine's environment variable.",
    ] = None
    headers: Annotated[
        Mapping[str, Any],
        _headers,
        Changes.NOTHING,
        "Further HTTP headers; in files `${NAME}` is read from the environment.",
    ] = immutabledict()
    timeout: Annotated[
        float,
        number(above=0),
        Changes.NOTHING,
        "Seconds for one request, retries and the whole answer or stream included.",
    ] = 600.0
    max_in_flight: Annotated[
        int,
        integer(low=1),
        Changes.NOTHING,
        "Requests at the server at a time, at most.",
    ] = 256
    requests_per_minute: Annotated[
        int | None,
        integer(low=1),
        Changes.NOTHING,
        "Requests in any minute, at most, of all runs of this process with the same server and "
        "key.",
    ] = None
    tokens_per_minute: Annotated[
        int | None,
        integer(low=1),
        Changes.NOTHING,
        "Tokens of prompts and answers in any minute, at most.",
    ] = None
    retries: Annotated[
        int,
        integer(low=0),
        Changes.NOTHING,
        "How often a request is sent again, at most.",
    ] = 3
    outage: Annotated[
        float,
        number(low=0),
        Changes.NOTHING,
        "Seconds to wait for a server that is away or overloaded (429, 503, 529).",
    ] = 120.0
    batch_budget: Annotated[
        float | None,
        number(above=0),
        Changes.NOTHING,
        "Seconds for a whole call, retries and waits included.",
    ] = None
    served_model_name: Annotated[
        str | None,
        non_empty_string,
        Changes.MODEL,
        "The server's name for the model; by default the one that it reports.",
    ] = None
    server_limit: Annotated[
        bool,
        boolean,
        Changes.ANSWERS,
        "Without an option for the length, the server's own limit holds, not pipegen's default.",
    ] = False
    extra_body: Annotated[
        Mapping[str, Any],
        secretive,
        Changes.ANSWERS,
        "Merged into the body of each request, deeply; `None` takes a key away.",
    ] = immutabledict()


@record
class TokenServerSettings(ServerSettings, CheckpointSettings):
    """A server that runs already, token ids in and out. `model` is the checkpoint whose tokenizer,
    template and processor are used here.
    """


@record
class ChatServerSettings(ServerSettings, EngineSettings):
    """The chat completions of any server like OpenAI's: the server renders the messages, and
    pipegen cuts the text.
    """

    dialect: Annotated[
        Dialect,
        one_of(*DIALECTS),
        Changes.ANSWERS,
        "Whose fields beyond OpenAI's own the server takes.",
    ] = "plain"
    separate_reasoning: Annotated[
        bool | None, boolean, Changes.ANSWERS, "Ask SGLang for the reasoning apart from the answer."
    ] = None


SETTINGS: Mapping[str, type[Any]] = dict(
    zip(
        BACKENDS,
        (HFSettings, VLLMSettings, TokenServerSettings, TokenServerSettings, ChatServerSettings),
        strict=True,
    )
)
"""The settings of each function of `pipegen.backends`."""


FALLBACK_WHEN = ("UnsupportedMultimodal", "UnsupportedOption", "UnsupportedPlugin")
_WHEN = f"The errors with which it takes over. Default: {', '.join(FALLBACK_WHEN)}."


@record
class FallbackSettings:
    """The engine that takes over for a first one, whose name is the field `backend`."""

    __slots__ = ()
    fallback_backend: Annotated[
        str | None,
        one_of(*BACKENDS),
        Changes.ANSWERS,
        "The engine that takes over what the first one cannot do.",
    ] = None
    fallback_when: Annotated[
        tuple[str | type[errors.GenerationError], ...], tuple_of(_error), Changes.ANSWERS, _WHEN
    ] = FALLBACK_WHEN

    def check_all(self: Any) -> None:
        """Check the fields against each other, and against `backend` of the record that inherits
        these.
        """
        if self.fallback_backend == self.backend:
            raise InvalidField(
                f"{type(self).__name__}.fallback_backend takes another engine than the first one,"
                f" {self.backend!r}"
            )
        if self.fallback_backend is None and self.fallback_when != FALLBACK_WHEN:
            raise InvalidField(f"{type(self).__name__}.fallback_when takes fallback_backend too")


@record
class ModelLoadConfig(FallbackSettings, HFSettings):
    """Which model to load, on which engine, and how: the settings of `hf`, and in `engine_kwargs`
    those that other engines have.
    """

    backend: Annotated[
        str,
        non_empty_string,
        Changes.MODEL,
        "One of `pipegen.backends.BACKENDS`; a server's address is in `engine_kwargs`.",
    ] = "hf"


_ROUTING = ("backend", "fallback_backend", "fallback_when", "engine_kwargs", "batch_size")


def fields_of(backend: str) -> Mapping[str, dataclasses.Field[Any]]:
    """The settings of a function of `pipegen.backends`, besides the model."""
    return {
        field.name: field
        for field in dataclasses.fields(SETTINGS[backend])
        if field.name != "model"
    }


def settings_of(config: ModelLoadConfig) -> Any:
    """The settings that a configuration has for its backend: the fields of the same name, and
    `engine_kwargs`.

    Raises `InvalidField` for a backend that does not exist, for a field that is not for this one,
    and for a key, which belongs into the environment. `UnknownField` has the nearest name for one
    of `engine_kwargs` that a server does not take.
    """
    if config.backend not in SETTINGS:
        raise InvalidField(
            f"ModelLoadConfig.backend takes one of {', '.join(BACKENDS)}, not"
            f" {config.backend!r}{nearest(config.backend, BACKENDS)}"
        )
    kind, names = SETTINGS[config.backend], fields_of(config.backend)
    values: dict[str, object] = {"model": config.model}
    if "engine_kwargs" in names:
        values["engine_kwargs"] = config.engine_kwargs
    else:
        for name, value in config.engine_kwargs.items():
            if name in ("api_key", "headers"):
                raise InvalidField(
                    f"ModelLoadConfig.engine_kwargs takes no {name}: set the environment variable,"
                    f" or call {config.backend}"
                )
            if name not in names:
                raise UnknownField(
                    f"ModelLoadConfig.engine_kwargs: {config.backend} takes no"
                    f" {name!r}{nearest(name, names)}"
                )
            values[name] = revealed(value)
    if config.batch_size is not None:
        values.setdefault(kind.rows, config.batch_size)
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name in _ROUTING or value == field.default:
            continue
        if field.name not in names and field.name != "model":
            takers = ", ".join(backend for backend in BACKENDS if field.name in fields_of(backend))
            raise InvalidField(
                f"ModelLoadConfig.{field.name} is not for backend {config.backend!r}, but for"
                f" {takers}"
            )
        values[field.name] = value
    return kind(**values)


@functools.cache
def changes_of(kind: type) -> Mapping[str, Changes | None]:
    """What each setting of a record changes of the answers; None where the record does not say.

    >>> changes_of(HFSettings)["batch_size"].name, changes_of(HFSettings)["dtype"].name
    ('NOTHING', 'ANSWERS')
    """
    return {
        name: next((extra for extra in extras if isinstance(extra, Changes)), None)
        for name, extras in metadata_of(kind).items()
    }


def that_change_answers(settings: object) -> dict[str, Any]:
    """The settings whose values change the answers, where they are not the default, as plain data.
    Of a secret there is a digest.

    Entries of `engine_kwargs` are beside the other settings: some settings may be given in either
    place.

    >>> that_change_answers(
    ...     VLLMSettings(
    ...         "m",
    ...         max_num_seqs=8,
    ...         kv_cache_dtype="fp8",
    ...         engine_kwargs={"quantization": "fp8", "swap_space": 1},
    ...     )
    ... )
    {'kv_cache_dtype': 'fp8', 'quantization': 'fp8'}
    >>> that_change_answers(
    ...     ChatServerSettings(
    ...         "m", extra_body={"user": "me", "seed_token": "s", "n": {"b": 1, "a": None}}
    ...     )
    ... )
    {'extra_body': {'n': {'a': None, 'b': 1}, 'seed_token': 'secret a27592ee'}}
    """
    kind: Any = type(settings)
    changes = changes_of(kind)
    values = {
        field.name: getattr(settings, field.name)
        for field in dataclasses.fields(kind)
        if changes[field.name] is Changes.ANSWERS
    }
    defaults = {field.name: field.default for field in dataclasses.fields(kind)}
    values |= values.pop("engine_kwargs", {})
    if "extra_body" in values:
        values["extra_body"] = {
            name: value
            for name, value in values["extra_body"].items()
            if name not in kind.unchanging
        }
    return {
        name: _without_secrets(value)
        for name, value in sorted(values.items())
        if name not in kind.unchanging
        and changes.get(name) is not Changes.NOTHING
        and value not in (None, "auto", {}, defaults.get(name))
    }


def _without_secrets(value: object) -> object:
    """The value as plain data in a fixed order, with a digest in the place of each secret."""
    if isinstance(value, Secret):
        from hashlib import blake2b  # importing pipegen loads no hashlib

        return (
            "secret"
            f" {blake2b(value.reveal().encode('utf-8', 'surrogatepass'), digest_size=4).hexdigest()}"
        )
    if isinstance(value, Mapping):
        return {name: _without_secrets(value[name]) for name in sorted(value)}
    return (
        [_without_secrets(entry) for entry in value] if isinstance(value, (list, tuple)) else value
    )


def config_of(settings: EngineSettings, backend: str) -> ModelLoadConfig:
    """The configuration that an engine of this process, or the reader of a checkpoint, is given: an
    engine's own settings are in its `engine_kwargs`.
    """
    shared = {field.name for field in dataclasses.fields(ModelLoadConfig)}
    values = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    fields = {name: value for name, value in values.items() if name in shared}
    if backend in IN_PROCESS:
        engine_kwargs = {
            name: value
            for name, value in values.items()
            if name not in shared and value is not None
        }
        fields["engine_kwargs"] = {**engine_kwargs, **fields["engine_kwargs"]}
    return ModelLoadConfig(backend=backend, **fields)
