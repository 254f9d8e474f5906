"""A stand-in for vLLM with the few names that the engine uses: what it is asked is written down,
and what it generates is a rule.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from enum import Enum
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

NAMES = (
    "model dtype trust_remote_code generation_config logprobs_mode revision tokenizer_revision"
    " max_num_seqs disable_log_stats limit_mm_per_prompt"
)
NAMES += (
    " enable_lora max_lora_rank max_logprobs gpu_memory_utilization tensor_parallel_size"
    " max_model_len enforce_eager kv_cache_dtype"
)
NAMES += " structured_outputs_config hf_overrides"


class Params:
    """SamplingParams: keeps what it is given."""

    def __init__(self, **said: Any) -> None:
        if said["temperature"] > 2:
            raise ValueError("temperature must be in [0, 2]")
        self.__dict__.update(said)


@dataclasses.dataclass
class Form:
    """StructuredOutputsParams, or GuidedDecodingParams in older versions: what form an answer must
    have.
    """

    json: str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None


class Dead(Exception):
    """What a dead engine raises."""


@dataclasses.dataclass
class Standin:
    """An engine that generates, for a prompt that ends with id p, the ids p + 1, p + 2, ..."""

    arguments: Any
    usage: Any = None
    live: dict[str, Any] = dataclasses.field(default_factory=dict)
    aborted: list[str] = dataclasses.field(default_factory=list)
    more: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    asked: list[int | None] = dataclasses.field(default_factory=list)
    """How many logprobs of each request."""
    prompt_ids: Any = None
    """What it says the prompt was, where that is not what it was given."""
    ends: str | None = None
    """How it ends rows after their first token, where it does."""
    dies: bool = False
    step_raises: Exception | None = None
    add_raises: dict[int, Exception] = dataclasses.field(default_factory=dict)
    """What adding a prompt with that first id raises."""
    shutdown_raises: Exception | None = None
    stopped: bool = False
    steps: int = 0
    outputs: int = 0
    process: dict[str, Any] = dataclasses.field(default_factory=dict)
    """What its core has where it runs in a process of its own."""

    prompts: list[Any] = dataclasses.field(default_factory=list)
    """The ids of each request, in the order in which they came."""
    most: int = 0
    """How many requests it had at a time."""

    def __post_init__(self) -> None:
        model_config = SimpleNamespace(max_model_len=64, is_multimodal_model=True)
        self.vllm_config: Any = SimpleNamespace(
            model_config=model_config,
            scheduler_config=SimpleNamespace(max_num_seqs=self.arguments.max_num_seqs or 16),
        )

    @property
    def engine_core(self) -> Any:
        return SimpleNamespace(shutdown=self._shutdown, **self.process)

    def _shutdown(self) -> None:
        if self.shutdown_raises is not None:
            raise self.shutdown_raises
        self.stopped = True

    def add_request(self, request_id: str, prompt: Any, params: Any, **more: Any) -> None:
        if self.dies and not self.live:
            raise Dead("gone before")
        if prompt["prompt_token_ids"][0] in self.add_raises:
            raise self.add_raises[prompt["prompt_token_ids"][0]]
        if prompt["prompt_token_ids"][0] == 7:
            raise ValueError("no sevens")
        self.more.append(more)
        self.asked.append(params.logprobs)
        self.live[request_id] = (prompt["prompt_token_ids"], params, [])
        self.prompts.append(tuple(prompt["prompt_token_ids"]))
        self.most = max(self.most, len(self.live))

    def abort_request(self, request_ids: list[str]) -> None:
        self.aborted += request_ids
        for request_id in request_ids:
            self.live.pop(request_id, None)

    def step(self) -> list[Any]:
        if self.dies:
            raise Dead("gone")
        if self.step_raises is not None:
            raise self.step_raises
        if not self.live:
            raise AssertionError("vLLM in a process of its own would wait here for ever")
        self.steps += 1
        outputs = []
        for request_id, (ids, params, made) in list(self.live.items()):
            token_id = ids[-1] + 1 + len(made)
            made.append(token_id)
            reason = self.ends or (
                "stop"
                if token_id in params.stop_token_ids
                else "length"
                if len(made) == params.max_tokens
                else None
            )
            logprobs = (
                None
                if params.logprobs is None
                else [{token_id: SimpleNamespace(logprob=-0.5), 1: SimpleNamespace(logprob=-0.25)}]
            )
            if whole := params.output_kind.name == "FINAL_ONLY":
                logprobs = (
                    None
                    if logprobs is None
                    else [
                        {made_id: SimpleNamespace(logprob=-0.5), 1: SimpleNamespace(logprob=-0.25)}
                        for made_id in made
                    ]
                )
            completion = SimpleNamespace(
                token_ids=[*made] if whole else [token_id], logprobs=logprobs, finish_reason=reason
            )
            told = ids if self.prompt_ids is None else self.prompt_ids
            self.outputs += reason is not None or not whole
            if reason is None and whole:
                continue
            outputs.append(
                SimpleNamespace(
                    request_id=request_id,
                    prompt_token_ids=told,
                    outputs=[completion],
                    finished=reason is not None,
                    num_cached_tokens=len(told) - 1,
                )
            )
            if reason is not None:
                del self.live[request_id]
        return outputs


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[Standin]]:
    """Put the stand-in where vLLM is looked for, and give the list of the engines that were
    started.
    """
    engines: list[Standin] = []

    class Engine:
        @staticmethod
        def from_engine_args(arguments: Any, usage_context: Any) -> Standin:
            engines.append(Standin(arguments, usage_context))
            return engines[-1]

    made: Any = dataclasses.make_dataclass(
        "EngineArgs", [(name, Any, None) for name in NAMES.split()]
    )
    made.create_model_config = lambda self: SimpleNamespace(
        max_model_len=64, is_multimodal_model=True
    )
    kinds: Any = Enum("kinds", ["CUMULATIVE", "DELTA", "FINAL_ONLY"])
    contents: dict[str, dict[str, Any]] = {
        "vllm": {
            "EngineArgs": made,
            "LLMEngine": Engine,
            "SamplingParams": Params,
            "__version__": "0.32.0",
        },
        "vllm.sampling_params": {
            "RequestOutputKind": kinds,
            "_MAX_TEMP": 0.01,
            "StructuredOutputsParams": Form,
        },
        "vllm.exceptions": {},
        "vllm.envs": {"VLLM_ENABLE_V1_MULTIPROCESSING": True},
        "vllm.platforms": {
            "current_platform": SimpleNamespace(device_type="cpu", is_cpu=lambda: True)
        },
        "vllm.usage": {},
        "vllm.usage.usage_lib": {
            "UsageContext": Enum("UsageContext", ["LLM_CLASS", "ENGINE_CONTEXT"])
        },
        "vllm.v1": {},
        "vllm.v1.engine": {},
        "vllm.v1.engine.exceptions": {"EngineDeadError": Dead, "EngineGenerateError": Dead},
        "vllm.lora": {},
        "vllm.lora.request": {"LoRARequest": lambda *said: said},
        "vllm.lora.peft_helper": {
            "PEFTHelper": dataclasses.make_dataclass(
                "PEFTHelper", ["r", "lora_alpha", "rank_pattern", "target_modules"]
            )
        },
    }
    for name, content in contents.items():
        module = ModuleType(name)
        module.__dict__.update(content)
        module.__path__ = []
        module.__spec__ = ModuleSpec(name, None, is_package=True)
        monkeypatch.setitem(sys.modules, name, module)
        if "." in name:
            monkeypatch.setattr(
                sys.modules[name.rpartition(".")[0]], name.rpartition(".")[2], module, raising=False
            )
    (tmp_path / "engine").mkdir()
    source = "class EngineArgs:\n" + "".join(
        f"    {name}: object = None\n" for name in NAMES.split()
    )
    (tmp_path / "engine" / "arg_utils.py").write_text(source)
    spec = sys.modules["vllm"].__spec__
    assert spec is not None
    assert spec.submodule_search_locations is not None
    spec.submodule_search_locations.append(str(tmp_path))
    from pipegen.backends.vllm import start, vllm_sampling

    for cached in (start.argument_names, vllm_sampling._params):
        cached.cache_clear()
    yield engines
    for cached in (start.argument_names, vllm_sampling._params):
        cached.cache_clear()
