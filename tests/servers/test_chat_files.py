"""`pipegen chat` and the renderer-driven client on running servers: the answers of the engine in
this process.
"""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import pipegen as pg
from pipegen.cli import main
from pipegen.contrib.renderers import PromptTooLongError, SGLangBackend, VLLMBackend, generate

both = pytest.mark.parametrize("served", ["vllm-embedded", "sglang-embedded"], indirect=True)
QUESTION = [{"role": "user", "content": "List the colors."}]


@pytest.fixture(scope="module")
def here() -> pg.GenerationResult:
    """What the Hugging Face engine answers."""
    with pg.backends.hf("embedded") as route:
        return pg.run(route, [{"messages": QUESTION}], pg.GenerationOptions(max_new_tokens=24))[
            0
        ].unwrap()


@both
def test_a_chat_file_reaches_both_routes_of_a_server(
    served: Any,
    here: pg.GenerationResult,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(
        "KEY_OF_THE_TEST",
        served.chat().engine.sender.access.headers()["Authorization"].removeprefix("Bearer "),
    )
    said = {
        "model": served.folder,
        "base_url": f"{served.url}/v1",
        "api_key": "${KEY_OF_THE_TEST}",
        "max_tokens": 24,
    }
    agents = [
        {"id": "chat", "backend": {"type": served.engine, **said}},
        {"id": "ids", "backend": {"type": f"{served.engine}_server", **said}},
    ]
    agents.append(
        {"id": "thinks", "backend": {"type": served.engine, **said, "enable_thinking": True}}
    )
    file = tmp_path / "chat.json"
    file.write_text(json.dumps({"agents": agents}))
    with pytest.raises(SystemExit) as left:
        main(["chat", "--config", str(file), QUESTION[0]["content"], "--json"])
    chat, ids, thinks = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert left.value.code == 0, [chat, ids, thinks]
    seen = (chat["text"], ids["text"], ids["token_ids"])
    assert seen == (here.text, here.text, list(here.token_ids))
    assert "I make a list." in thinks["reasoning"]


@both
def test_the_servers_own_fields_take_effect(
    served: Any,
    here: pg.GenerationResult,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(
        "KEY_OF_THE_TEST",
        served.chat().engine.sender.access.headers()["Authorization"].removeprefix("Bearer "),
    )
    said = {
        "type": served.engine,
        "model": served.folder,
        "base_url": f"{served.url}/v1",
        "api_key": "${KEY_OF_THE_TEST}",
    }
    own: dict[str, Any] = (
        {"extra_body": {"bad_words": ["no"]}, "length_penalty": 1.0}
        if served.engine == "vllm"
        else {"regex": "[ab]{3}"}
    )
    fields: dict[str, dict[str, Any]] = {
        "plain": {},  # no length: the server's own limit
        "form": {"guided_choice": ["yes", "no way"]},
        "biased": {"logit_bias": {str(here.token_ids[1]): 100}, "max_tokens": 3},
        "json": {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": {"enum": ["x y"]}},
            }
        },
        "own": {"priority": 0, "max_tokens": 24, **own},
    }
    file = tmp_path / "chat.json"
    file.write_text(
        json.dumps(
            {"agents": [{"id": name, "backend": {**said, **more}} for name, more in fields.items()]}
        )
    )
    with pytest.raises(SystemExit):
        main(["chat", "--config", str(file), QUESTION[0]["content"], "--json"])
    lines = {line["agent"]: line for line in map(json.loads, capsys.readouterr().out.splitlines())}
    assert all(line["ok"] for line in lines.values()), lines
    assert (lines["plain"]["text"], "max_new_tokens" in lines["plain"]["options"]) == (
        here.text,
        False,
    )
    assert lines["form"]["text"] in ("yes", "no way")
    biased = lines["biased"]["text"]
    assert biased
    assert biased == 3 * biased[: len(biased) // 3]  # the same token each time
    assert json.loads(lines["json"]["text"]) == "x y"
    assert served.engine == "vllm" or re.fullmatch("[ab]{3}", lines["own"]["text"])


class Renderer:
    """Gives the ids that pipegen's own chat template gave."""

    def __init__(self, prompt: tuple[int, ...], end: int) -> None:
        self.prompt, self.end = list(prompt), end

    def render(self, messages: Any, **said: Any) -> Any:
        return SimpleNamespace(token_ids=self.prompt, multi_modal_data=None)

    def get_stop_token_ids(self) -> list[int]:
        return [self.end]

    def parse_response(self, token_ids: list[int], **said: Any) -> Any:
        return SimpleNamespace(
            content="", reasoning_content=None, tool_calls=[], reasoning_complete=True
        )


@both
def test_the_renderer_driven_client_gets_the_ids_of_the_engine_in_this_process(
    served: Any, here: pg.GenerationResult
) -> None:
    openai: Any = pytest.importorskip("openai")
    pytest.importorskip("httpx")
    key = served.chat().engine.sender.access.headers()["Authorization"].removeprefix("Bearer ")
    said: dict[str, Any] = {
        "renderer": Renderer(here.prompt_token_ids, here.token_ids[-1]),
        "messages": QUESTION,
        "model": served.model,
    }
    said["backend"] = VLLMBackend() if served.engine == "vllm" else SGLangBackend()

    async def ask() -> None:
        async with openai.AsyncOpenAI(
            base_url=f"{served.url}/v1", api_key=key, max_retries=0
        ) as client:
            result = await generate(
                client=client, **said, sampling_params={"temperature": 0, "max_tokens": 24}
            )
            assert tuple(result["completion_ids"]) == here.token_ids
            assert len(result["completion_logprobs"]) == len(here.token_ids)
            two = await generate(
                client=client, **said, sampling_params={"temperature": 1.0, "max_tokens": 3, "n": 2}
            )
            assert [len(one["completion_ids"]) for one in two["completions"]] == [3, 3]
            for limit in (None, 10**6):  # found before sending, and reported by the server
                with pytest.raises(PromptTooLongError):
                    await generate(
                        client=client, **said, prompt_ids=[5] * 5000, max_prompt_len=limit
                    )

    asyncio.run(ask())
