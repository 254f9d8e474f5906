"""A chat file that names a second engine: refusals first, then the fallback that `ModelLoadConfig`
gives too.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import pipegen as pg
from pipegen.cli import main
from pipegen.cli.run_flags import AskedFlags
from pipegen.cli.usage import load_of, open_routes
from pipegen.config import BackendConfig, chat_from, read_chat
from pipegen.core.names import InvalidField
from pipegen.engines.settings import EngineSettings, HFSettings
from pipegen.records.fields import UnknownField
from pipegen.testing.fake import FakeEngine

Opened = list[tuple[str, Any]]


def backend(**said: Any) -> BackendConfig:
    return chat_from({"backend": {"type": "vllm", "model": "m", **said}}).agents[0].backend


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    """Scripted engines in place of all; the list of those that were opened, with their settings."""
    seen: Opened = []

    def route_with(name: str, settings: EngineSettings) -> pg.Route:
        seen.append((name, settings))
        return pg.route(
            FakeEngine(
                name,
                name=name,
                honours=pg.ENGINES["vllm_chat" if name == "openai_server" else name],
            )
        )

    monkeypatch.setattr("pipegen.backends.route_with", route_with)
    return seen


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (
            "fallback_backend: hff",
            r"backend\.fallback_backend: takes one of 'hf', .*, not 'hff'; did you mean 'hf'\?",
        ),
        (
            "fallback_backend: vllm",
            r"backend\.fallback_backend: takes another engine than the first one, 'vllm'",
        ),
        ("fallback_backend: {type: hf}", r"backend\.fallback_backend: takes one of "),
        (
            "fallback_backend: hf, fallback_when: [Timeot]",
            r"backend\.fallback_when: takes the name of an error.*did you mean 'Timeout'\?",
        ),
        (
            "fallback_backend: hf, fallback_when: Timeout",
            r"backend\.fallback_when: takes a tuple or a list",
        ),
        (
            "fallback_backend: hf, fallback_when: [1]",
            r"backend\.fallback_when: takes the name of an error at position 0, not \[1\]",
        ),
        ("fallback_when: [Timeout]", r"backend\.fallback_when: takes fallback_backend too"),
        ("fallback: hf", r"backend\.fallback: .*did you mean 'fallback_backend'\?"),
        ("falback_when: [Timeout]", r"backend\.falback_when: .*did you mean 'fallback_when'\?"),
    ],
)
def test_a_bad_fallback_is_refused_with_its_place(tmp_path: Path, keys: str, words: str) -> None:
    (tmp_path / "chat.yaml").write_text(
        f"agents:\n- id: a\n  backend: {{type: vllm, model: m, {keys}}}\n"
    )
    with pytest.raises(InvalidField, match=rf"chat\.yaml line 3: agents\[0\]\.{words}"):
        read_chat(tmp_path / "chat.yaml")


def test_another_route_of_the_same_engine_is_refused_by_any_type() -> None:
    for said in ({"type": "sglang"}, {"type": "openai"}, {"type": "vllm", "base_url": None}):
        with pytest.raises(
            InvalidField, match="takes another engine than the first one, 'openai_server'"
        ):
            backend(fallback_backend="openai_server", **said)


def test_a_configuration_refuses_the_same_when_it_is_made() -> None:
    for said, words in (
        (
            {"fallback_backend": "hff"},
            r"ModelLoadConfig\.fallback_backend takes one of .*did you mean 'hf'",
        ),
        (
            {"backend": "vllm", "fallback_backend": "vllm"},
            r"ModelLoadConfig\.fallback_backend takes another engine than the first one, 'vllm'",
        ),
        (
            {"fallback_when": ["Timeout"]},
            r"ModelLoadConfig\.fallback_when takes fallback_backend too",
        ),
    ):
        with pytest.raises(InvalidField, match=words):
            pg.ModelLoadConfig(model="m", **said)
    with pytest.raises(UnknownField, match="did you mean 'fallback_backend'"):
        # that is the mistake
        pg.ModelLoadConfig(model="m", fallback="hf")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("keys", "takes_over"),
    [
        ({}, True),
        ({"fallback_when": ["Timeout"]}, False),
        ({"fallback_when": ["UnsupportedOption", "Timeout"]}, True),
    ],
)
def test_the_second_engine_takes_over_for_the_errors_that_are_named(
    keys: dict[str, Any], takes_over: bool, opened: Opened
) -> None:
    made = backend(fallback_backend="hf", top_k=5, **keys)
    config = pg.ModelLoadConfig(model="m", backend="vllm", fallback_backend="hf", **keys)
    for pipe in (made.open(), pg.backends.load(config)):
        assert pipe.name == "fallback(vllm, hf)"
        (slot,) = pg.run(pipe, [{"prompt": "Hi"}], {"no_repeat_ngram_size": 2})
        assert slot.map(lambda result: (result.text, len(result.tried))).value_or(None) == (
            ("hf", 1) if takes_over else None
        )


@pytest.mark.parametrize(
    "keys",
    [
        {"type": "vllm", "max_model_len": 9},
        {"type": "openai", "base_url": "http://h/v1", "api_key": "k"},
    ],
)
def test_the_second_engine_gets_the_model_and_what_every_engine_takes(
    keys: dict[str, Any], opened: Opened
) -> None:
    backend(**keys, fallback_backend="hf").open()
    assert opened[1] == ("hf", HFSettings("m"))


def test_without_a_second_engine_there_is_one_route(opened: Opened) -> None:
    assert [
        backend().open().name,
        backend(fallback_backend=None, fallback_when=None).open().name,
    ] == ["vllm", "vllm"]
    assert backend(fallback_backend="hf").first().name == "vllm"


def test_flags_win_over_what_the_file_says(tmp_path: Path, opened: Opened) -> None:
    file = tmp_path / "chat.yaml"
    file.write_text("backend: {type: vllm_server, model: m, fallback_backend: hf}")
    for flags, name in (
        ((None, ()), "fallback(vllm_server, hf)"),
        (("vllm", ()), "fallback(vllm_server, vllm)"),
        ((None, ("Timeout",)), "fallback(vllm_server, hf)"),
    ):
        load = load_of(AskedFlags(config=file), {}, *flags)
        assert open_routes(load).name == name
        assert load.backend.fallback_when == (
            flags[1] or ("UnsupportedMultimodal", "UnsupportedOption", "UnsupportedPlugin")
        )


def test_a_chat_falls_back_and_a_dry_run_shows_the_first_engine(
    tmp_path: Path, opened: Opened, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "chat.yaml"
    file.write_text(
        "backend: {type: vllm, model: m, fallback_backend: hf, no_repeat_ngram_size: 2,"
        " chat_template_kwargs: {}}"
    )
    for flag in ("--json", "--dry-run"):
        with pytest.raises(SystemExit) as left:
            main(["chat", "-c", str(file), "Hi", flag])
        assert left.value.code == 0
    answer, call = map(json.loads, capsys.readouterr().out.splitlines())
    assert (answer["text"], answer["route"], [error["type"] for error in answer["tried"]]) == (
        "hf",
        "hf",
        ["UnsupportedOption"],
    )
    assert (call["method"], [name for name, _ in opened]) == ("call", ["vllm", "hf", "vllm"])


def test_an_estimate_counts_for_the_first_engine(
    tmp_path: Path, opened: Opened, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "chat.yaml").write_text("backend: {type: vllm, model: m, fallback_backend: hf}")
    (tmp_path / "in.jsonl").write_text('{"prompt": "Hi"}\n')
    with pytest.raises(SystemExit) as left:
        main(["estimate", str(tmp_path / "in.jsonl"), "-c", str(tmp_path / "chat.yaml"), "--json"])
    assert (left.value.code, json.loads(capsys.readouterr().out)["prompt_tokens"]) == (0, 2)
    assert [name for name, _ in opened] == ["vllm"]
