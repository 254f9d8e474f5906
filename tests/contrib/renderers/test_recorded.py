"""The renderer-driven client on what real servers answered: see tests/servers/record.py."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipegen.contrib.renderers import RendererBackend, SGLangBackend, VLLMBackend, generate

if not any(map(importlib.util.find_spec, ("httpx", "httpx2"))):
    pytest.skip("the client's own HTTP library is not installed", allow_module_level=True)

RECORDED = Path(__file__).parents[2] / "backends" / "servers" / "recorded"
BACKENDS = pytest.mark.parametrize(
    ("engine", "backend"),
    [("vllm", VLLMBackend()), ("sglang", SGLangBackend())],
    ids=["vllm", "sglang"],
)


def recorded(engine: str, name: str) -> Any:
    return json.loads((RECORDED / engine / f"{name}.json").read_text(encoding="utf-8"))


class Client:
    """Answers every post as a real server did."""

    base_url = "http://localhost:8000/v1"

    def __init__(self, body: Any) -> None:
        self.body = body

    async def post(self, url: str, **said: Any) -> Any:
        return SimpleNamespace(content=json.dumps(self.body).encode())


class Renderer:
    def get_stop_token_ids(self) -> list[int]:
        return []

    def parse_response(self, token_ids: list[int], **said: Any) -> Any:
        return SimpleNamespace(
            content="", reasoning_content=None, tool_calls=[], reasoning_complete=True
        )


@BACKENDS
def test_a_real_answer_is_read(engine: str, backend: RendererBackend) -> None:
    case = recorded(engine, "generate_logprobs")
    prompt = case["request"]["body"].get("token_ids") or case["request"]["body"]["input_ids"]
    said: Any = {
        "renderer": Renderer(),
        "messages": [],
        "model": "embedded",
        "prompt_ids": prompt,
        "backend": backend,
    }
    result = asyncio.run(generate(client=Client(case["body"]), **said))
    assert result["completion_ids"] == [1094, 11, 634]
    assert result["completion_logprobs"] == pytest.approx(
        [-8.2728e-05, -1.192e-07, -3.8742e-05], rel=1e-3
    )
    assert (result["finish_reason"], result["prompt_ids"]) == ("length", prompt)
    assert (result["usage"]["prompt_tokens"], result["usage"]["total_tokens"]) == (21, 24)


REFUSALS = [
    ("vllm", "too_long"),
    ("vllm", "no_room"),
    ("sglang", "too_long"),
    ("sglang", "beyond_the_margin"),
    ("sglang", "does_not_fit"),
]


@pytest.mark.parametrize(("engine", "name"), REFUSALS)
def test_a_real_refusal_of_a_long_prompt_is_known(engine: str, name: str) -> None:
    backend: RendererBackend = VLLMBackend() if engine == "vllm" else SGLangBackend()
    long, other = recorded(engine, f"generate_{name}"), recorded(engine, "generate_bad_temperature")
    # as the openai client says it
    said, elsewhere = (
        RuntimeError(f"Error code: {case['status']} - {case['body']}") for case in (long, other)
    )
    assert backend.is_overflow_error(said)
    assert not backend.is_overflow_error(elsewhere)
