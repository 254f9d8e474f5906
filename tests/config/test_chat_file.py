"""Chat files: what they take, those of the original system among them, and how a bad one is
refused.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from pipegen.config import BackendConfig, ChatConfig, Secret, chat_from, read_chat
from pipegen.core.names import InvalidField
from pipegen.engines.settings import SETTINGS, ChatServerSettings
from pipegen.records.fields import UnknownField


def read(folder: Path, text: str, name: str = "chat.yaml") -> ChatConfig:
    file = folder / name
    file.write_text(text)
    return read_chat(file)


def backend(**said: Any) -> BackendConfig:
    return chat_from({"backend": {"model": "m", **said}}).agents[0].backend


TWO_SERVERS = """
agents:
  - id: "qwen1"
    backend:
      type: "vllm"
      model: "Qwen/Qwen3-4B"
      base_url: "http://localhost:8000/v1"
      chat_template_kwargs:
        enable_thinking: True
      top_k: 50
  - id: "qwen2"
    system_message: Be brief.
    backend:
      type: "sglang"
      model: "Qwen/Qwen3-4B"
      base_url: "http://localhost:30000/v1"
      extra_body:
        chat_template_kwargs:
          enable_thinking: True
ui:
  display_type: "rich_terminal"
  logging_enabled: true
"""


def test_a_file_of_the_original_system_is_taken_as_it_is(tmp_path: Path) -> None:
    chat = read(tmp_path, TWO_SERVERS)
    first, second = chat.agents
    wanted = ChatServerSettings(
        "Qwen/Qwen3-4B", base_url="http://localhost:8000/v1", dialect="vllm", server_limit=True
    )
    seen = (first.id, first.backend.backend, first.backend.settings)
    assert seen == ("qwen1", "openai_server", wanted)
    assert first.backend.options.top_k == 50
    assert first.backend.options.chat is not None
    assert first.backend.options.chat.enable_thinking is True
    assert first.backend.options.chat.template_kwargs == {}
    assert (second.system_message, second.backend.settings.dialect) == ("Be brief.", "sglang")
    assert second.backend.settings.extra_body == {"chat_template_kwargs": {"enable_thinking": True}}
    assert second.backend.options.chat is not None
    assert second.backend.options.chat.enable_thinking is True
    assert chat.ui.display_type == "rich_terminal"
    assert chat.ui.logging_enabled


@pytest.mark.parametrize(
    ("said", "function", "settings"),
    [
        ({"type": "hf", "dtype": "float32"}, "hf", {"dtype": "float32"}),
        ({"type": "vllm", "max_model_len": 64}, "vllm", {"max_model_len": 64}),
        # H7: the engine's own default, never a public host
        ({"type": "vllm", "base_url": None}, "openai_server", {"dialect": "vllm"}),
        ({"type": "sglang"}, "openai_server", {"dialect": "sglang"}),
        ({"type": "openai", "base_url": None}, "openai_server", {"dialect": "vllm"}),
        ({"type": "vllm_server"}, "vllm_server", {}),
        (
            {"type": "sglang_server", "base_url": "http://h:1"},
            "sglang_server",
            {"base_url": "http://h:1"},
        ),
        (
            {"type": "SGLANG", "separate_reasoning": True},
            "openai_server",
            {"dialect": "sglang", "separate_reasoning": True},
        ),
        (
            {"type": "chatcompletion", "base_url": "http://h:30000/v1"},
            "openai_server",
            {"base_url": "http://h:30000/v1", "dialect": "sglang"},
        ),
        (
            {"type": "chatcompletion", "base_url": "http://h:8000/v1"},
            "openai_server",
            {"base_url": "http://h:8000/v1", "dialect": "vllm"},
        ),
        (
            {"type": "openai", "base_url": "https://h/v1", "dialect": "sglang"},
            "openai_server",
            {"base_url": "https://h/v1", "dialect": "sglang"},
        ),
        (
            {"type": "openai", "base_url": "https://h/v1"},
            "openai_server",
            {"base_url": "https://h/v1", "dialect": "plain"},
        ),
    ],
)
def test_each_type_is_carried_out_by_its_function(
    said: dict[str, Any], function: str, settings: dict[str, Any]
) -> None:
    made = backend(**said)
    more = {"server_limit": True} if function.endswith("_server") else {}
    assert (made.backend, made.settings) == (function, SETTINGS[function]("m", **settings, **more))


def test_options_stand_flat_beside_the_backend_by_either_name() -> None:
    options = backend(
        type="hf",
        max_tokens=7,
        min_tokens=2,
        n=3,
        stop=["END"],
        strip_whitespace=True,
        top_k=0,
        temperature=None,
    ).options
    seen = (options.max_new_tokens, options.min_new_tokens, options.samples, options.top_k)
    assert seen == (7, 2, 3, 0)
    assert options.stop is not None
    assert options.stop.stop == ("END",)
    assert options.temperature is None


def test_thinking_may_be_set_in_three_places_that_agree() -> None:
    said = {
        "enable_thinking": True,
        "chat_template_kwargs": {"enable_thinking": True, "foo": 1},
        "extra_body": {"chat_template_kwargs": {"foo": 2}},
    }
    made = backend(type="vllm", base_url=None, **said)
    assert made.options.chat is not None
    assert (made.options.chat.enable_thinking, made.options.chat.template_kwargs) == (
        True,
        {"foo": 1},
    )
    # H8: the caller's own is not changed
    assert said["extra_body"] == {"chat_template_kwargs": {"foo": 2}}
    with pytest.raises(InvalidField, match="enable_thinking is False here, and True elsewhere"):
        backend(
            type="vllm",
            base_url=None,
            enable_thinking=True,
            extra_body={"chat_template_kwargs": {"enable_thinking": False}},
        )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "agents:\n- backend:\n    type: hf\n    model: m\n    temprature: 1\n",
            r"line 5: agents\[0\]\.backend\.temprature: .* did you mean 'temperature'\?",
        ),
        (
            "backend: {type: hf, model: m, base_url: null}",
            (
                r"line 1: backend\.base_url: .*; vllm, vllm_server, sglang, sglang_server, openai,"
                r" openai_server, chatcompletion do"
            ),
        ),
        ("backend: {type: vllm, model: m, api_key: k}", "only with base_url"),
        ("backend: {type: vllm, model: m, base_url: null, dtype: auto}", "only without base_url"),
        (
            "backend: {type: sglnag, model: m}",
            r"backend\.type: takes one of .*did you mean 'sglang'\?",
        ),
        ("backend: {type: hf}", "backend: the key model is missing"),
        (
            "backend: {type: hf, model: m, max_tokens: 1, max_new_tokens: 2}",
            "means the same as max_new_tokens",
        ),
        ("backend: {type: hf, model: m, max_tokens: 1.5}", r"backend\.max_tokens: .*whole number"),
        ("backend: {type: hf, model: m, stop: END}", r"backend\.stop: .*"),
        (
            "backend: {type: sglang, model: m, timeout: 0}",
            r"backend\.timeout: takes a number above 0, not 0",
        ),
        ("backend: {type: hf, model: m}\nuii: {}", r"line 2: uii: .* did you mean 'ui'\?"),
        (
            "backend: {type: hf, model: m}\nui: {display_type: web}",
            r"line 2: ui\.display_type: takes one of 'rich_terminal', 'simple'",
        ),
        (
            "agents:\n- id: no\n  backend: {type: hf, model: m}",
            (
                r"line 2: agents\[0\]\.id: takes a string that is not empty, not False; put it in"
                r" quotes"
            ),
        ),
        (
            "backend: {type: hf, model: m}\nui:\n  logging_enabled: 'true'",
            r"line 3: ui\.logging_enabled: takes True or False, not 'true'",
        ),
        ("backend: {type: hf, model: m}\nagents: []", "takes one of agents, agent and backend"),
        ("agents: []", "at least one agent"),
        (
            (
                "agents: [{id: a, backend: {type: hf, model: m}}, {id: a, backend: {type: hf,"
                " model: m}}]"
            ),
            r"agents\[1\]: the id 'a' is that of agents\[0\]",
        ),
        (
            "orchestrator: {}\nbackend: {type: hf, model: m}",
            "line 1: orchestrator: pipegen asks each model once, by itself: take it out",
        ),
        (
            "backend: {type: hf, model: m, cwd: w, mcp_servers: {}}",
            r"backend\.cwd: pipegen has no tools of its own: take it out, and mcp_servers",
        ),
        ("backend: {type: hf, model: m, system_message: s}", "goes beside backend"),
        (
            "backend: {type: gemini, model: m}",
            "another server that speaks OpenAI's is type openai with its base_url",
        ),
        (
            "backend: {type: openai, model: m, base_url: 'http://h:99999/v1'}",
            r"line 1: backend\.base_url: takes the address",
        ),
        (
            "backend: {type: openai, model: m, base_url: 'http://[::1/v1'}",
            r"backend\.base_url: takes the address",
        ),
        (
            "backend: {type: vllm, model: m, base_url: null, dialect: sglang}",
            r"backend\.dialect: type 'vllm' speaks its own dialect",
        ),
        (
            "backend: {type: hf, model: m}\nui: {type: simple, display_type: simple}",
            r"ui\.type: means the same as display_type",
        ),
        (
            "backend: {type: openai, model: m, api_key: $KEY}",
            r"backend\.api_key: .* is written \$\{NAME\}",
        ),
        (
            "backend: {type: openai, model: m, api_key: '${KEY:-sk}'}",
            r"backend\.api_key: takes \$\{NAME\}",
        ),
        (
            "backend: {type: openai, model: '${NO_SUCH_VARIABLE}'}",
            r"backend\.model: the environment variable NO_SUCH_VARIABLE is not set",
        ),
        ("agents:", r"agents: takes a list"),
        ("{}", "and holds none of them"),
        ("backend: [hf]", "takes a mapping such as"),
        (
            "backend: {type: sglang, model: m, headers: {X-Key: '${NO_SUCH_VARIABLE}'}}",
            "variable NO_SUCH_VARIABLE is not set",
        ),
        (
            "backend: {type: sglang, model: m, api_key: '${NO_SUCH_VARIABLE}'}",
            r"backend\.api_key: the environment variable NO_SUCH_VARIABLE is not set",
        ),
    ],
)
def test_a_bad_entry_is_refused_with_its_place(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InvalidField, match=words) as refusal:
        read(tmp_path, text)
    assert "chat.yaml" in str(refusal.value)


def test_json_files_name_the_way_to_the_entry(tmp_path: Path) -> None:
    with pytest.raises(UnknownField, match=r"chat\.json: agents\[0\]\.backend\.topk: .*'top_k'"):
        read(
            tmp_path,
            '{"agents": [{"backend": {"type": "hf", "model": "m", "topk": 1}}]}',
            "chat.json",
        )


@pytest.mark.parametrize(
    ("said", "environment", "key"),
    [
        ({"api_key": "sk-plain"}, {}, "sk-plain"),
        ({"api_key": "${MY_KEY}"}, {"MY_KEY": "sk-mine"}, "sk-mine"),
        # left to the backend: its own variable, else EMPTY
        ({"api_key": "${SGLANG_API_KEY}"}, {}, None),
        (
            {"base_url": "https://api.cerebras.ai/v1"},
            {"CEREBRAS_API_KEY": "sk-c", "OPENAI_API_KEY": "sk-o"},
            "sk-c",
        ),
        (
            {"base_url": "https://api.x.ai/v1"},
            {"XAI_API_KEY": "sk-x", "OPENAI_API_KEY": "sk-o"},
            "sk-x",
        ),
        (
            {"base_url": "https://generativelanguage.googleapis.com/v1beta/openai/"},
            {"GOOGLE_API_KEY": "sk-g"},
            "sk-g",
        ),
        ({"base_url": "https://x.ai.example.org/v1"}, {"XAI_API_KEY": "sk-x"}, None),
        # one provider's key never goes to another
        ({"base_url": "https://api.cerebras.ai/v1"}, {"OPENAI_API_KEY": "sk-o"}, "EMPTY"),
    ],
)
def test_keys_come_from_the_environment_and_show_nowhere(
    said: dict[str, Any],
    environment: dict[str, str],
    key: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # H9
    for name in (
        *("SGLANG_API_KEY", "CEREBRAS_API_KEY", "OPENAI_API_KEY", "XAI_API_KEY"),
        *("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    ):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    made = backend(
        type="chatcompletion",
        headers={"X-Other": "${MY_KEY}" if "MY_KEY" in environment else "sk-header"},
        **said,
    )
    kept = made.settings.api_key
    assert (kept.reveal() if isinstance(kept, Secret) else None) == key
    assert "sk-" not in repr(made)
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(made)


@pytest.mark.parametrize(
    "values",
    [
        {"type": "sglang", "model": "m", "api_key": ["sk-secret"]},
        {"type": "sglang", "model": "m", "headers": ["sk-secret"]},
        {"type": "sglang", "model": "m", "headers": {"X": ["sk-secret"]}},
        {"type": "sglang", "model": "m", "api_key": "${sk-secret}"},
        {"type": "sglang", "model": "m", "api_keyy": "sk-secret"},
        {"type": "sglang", "model": "m", "base_url": ["http://me:sk-secret@h"]},
        {"type": "sglang", "model": "m", "base_url": "http://me:sk-secret@h"},
        [{"type": "sglang", "api_key": "sk-secret"}],
    ],
)
def test_a_key_is_not_repeated_in_a_refusal(values: Any) -> None:
    with pytest.raises(InvalidField) as refusal:
        chat_from({"backend": values})
    assert "sk-secret" not in str(refusal.value)


def test_agents_without_an_id_have_their_type_for_one_and_a_number() -> None:
    agents: list[dict[str, Any]] = [
        {"backend": {"type": "hf", "model": "m"}},
        {"id": "hf-2", "backend": {"type": "hf", "model": "m"}},
        {"backend": {"type": "hf", "model": "n"}},
    ]
    assert [agent.id for agent in chat_from({"agents": agents}).agents] == ["hf", "hf-2", "hf-3"]
    agents[2]["id"] = "hf"
    assert [agent.id for agent in chat_from({"agents": agents}).agents] == ["hf-3", "hf-2", "hf"]


def test_an_empty_key_is_not_set_and_a_model_may_be_named_by_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MY_MODEL", "Qwen/Qwen3-4B")
    made = backend(type="vllm", model="${MY_MODEL}", base_url=None, api_key="")
    seen = (made.model, made.settings.api_key, dict(made.settings.headers))
    assert seen == ("Qwen/Qwen3-4B", None, {})
