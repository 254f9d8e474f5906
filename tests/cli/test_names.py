"""People read the names of engines as their makers write them; data keeps the ids."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pipegen as pg
from pipegen.cli import main
from pipegen.cli.chat_command import name_of
from pipegen.config import BackendConfig, chat_from
from pipegen.engines.capabilities import ENGINES
from pipegen.records.engine_list import TYPES, shown
from pipegen.testing.fake import FakeEngine

Command = Callable[..., Any]


def test_every_engine_and_type_has_a_name() -> None:
    assert [name for name in (*ENGINES, *TYPES, *pg.backends.BACKENDS) if shown(name) == name] == []
    seen = [shown(name) for name in ("vllm", "sglang", "hf", "mine")]
    assert seen == ["vLLM", "SGLang", "Hugging Face transformers", "mine"]


@pytest.mark.parametrize("name", ENGINES)
def test_errors_show_the_name(name: str) -> None:
    route = pg.route(FakeEngine("x", name=name, honours=frozenset({"stream"})))
    error = pg.run(route, [{"prompt": "Hi"}], pg.GenerationOptions(no_repeat_ngram_size=2))[
        0
    ].failure()
    assert error.message.startswith(f"{shown(name)} does not honour no_repeat_ngram_size=2")
    with pytest.raises(pg.UnsupportedPlugin) as raised:
        pg.attach(route, pg.plugins.balanced_json())
    watched = raised.value
    assert watched.message.endswith(f"which {shown(name)} does not offer")


@pytest.fixture
def chat_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(
        BackendConfig,
        "open",
        lambda self, *, dry=False: pg.route(FakeEngine("Hello", name="vllm_chat")),
    )
    backend = "backend: {type: vllm, model: m, base_url: null}"
    file = tmp_path / "chat.yaml"
    file.write_text(
        f"agents: [{{{backend}}}, {{{backend}}}, {{id: mine, {backend}}}]\nui: {{display_type:"
        " simple}\n"
    )
    return file


def test_chat_writes_ids(chat_file: Path, command: Command) -> None:
    ran = command("chat", "-c", chat_file, "Hi", "--json")
    seen = [(line["agent"], line["route"]) for line in ran.out]
    assert seen == [("vllm", "vllm_chat"), ("vllm-2", "vllm_chat"), ("mine", "vllm_chat")]


def test_chat_shows_names(chat_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["chat", "-c", str(chat_file), "Hi"])
    shown_text = capsys.readouterr().out
    seen = [line for line in shown_text.splitlines() if line.endswith("(m)")]
    assert seen == ["vLLM (m)", "vLLM-2 (m)", "mine (m)"]
    assert shown_text.count("· vLLM]") == 3


def test_an_id_of_ones_own_is_shown_as_it_is() -> None:
    agents = chat_from(
        {
            "agents": [
                {"id": "vllm-fast", "backend": {"type": "vllm", "model": "m"}},
                {"backend": {"type": "sglang", "model": "m"}},
            ]
        }
    ).agents
    assert [name_of(agent) for agent in agents] == ["vllm-fast", "SGLang"]


def test_doctor_shows_names_beside_what_is_typed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["doctor"])
    out = capsys.readouterr().out
    for name in ENGINES:
        assert f"{shown(name)} ({name})" in out
