"""An engine whose package is not installed, where another one takes over: it answers, and the
results say why.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

import pipegen as pg
from pipegen.cli import main
from pipegen.config import chat_from
from pipegen.core.distribution import MissingExtra, need

pytest.importorskip("torch")

HI: dict[str, Any] = {
    "messages": [{"role": "user", "content": "What is the capital of Japan?"}],
    "options": {"max_new_tokens": 4},
}


@pytest.fixture(autouse=True)
def without_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(package: str, extra: str, purpose: str) -> None:
        need("no_such_package" if package == "vllm" else package, extra, purpose)

    monkeypatch.setattr(
        importlib.import_module("pipegen.backends.vllm.vllm_engine"), "need", missing
    )


def config(**more: Any) -> pg.ModelLoadConfig:
    return pg.ModelLoadConfig(model="embedded", backend="vllm", **more)


def test_the_engine_to_fall_back_to_answers_and_the_result_says_why() -> None:
    with pg.backends.load(config(fallback_backend="hf")) as route:
        assert route.name == "fallback(vllm, hf)"
        result = pg.run(route, [HI])[0].unwrap()
    assert (result.route, len(result.tried), bool(result.text)) == ("hf", 1, True)
    (why,) = result.tried
    assert isinstance(why, pg.BackendFailed)
    assert (why.backend, why.lasting, why.hint.startswith("install it")) == ("vllm", True, True)
    assert "the vLLM engine needs the package no_such_package: pip install" in why.message


def test_an_object_of_two_methods_falls_back_too() -> None:
    with pg.GenerationEngine(config(fallback_backend="hf")) as engine:
        slots = [
            *engine.generate_text_batch([HI]),
            *engine.generate_vlm_batch(
                [{"prompt": "Hi", "images": ["docs/examples/shapes.png"]}], HI["options"]
            ),
        ]
    assert [slot.unwrap().route for slot in slots] == ["hf", "hf"]


def test_it_answers_whatever_errors_it_takes_over_for() -> None:
    with pg.backends.load(config(fallback_backend="hf", fallback_when=("Timeout",))) as route:
        assert pg.run(route, [HI])[0].unwrap().route == "hf"


def test_plugins_streams_and_samples_work_as_on_the_other_engine() -> None:
    with pg.attach(
        pg.backends.load(config(fallback_backend="hf")), pg.plugins.strip_prefix(["The"])
    ) as route:
        (slot,) = pg.run(route, [HI], {"samples": 2, "temperature": 1.0, "seed": 1})
        *deltas, done = pg.stream(route, [HI])
    assert len(slot.unwrap().samples) == 2
    assert isinstance(done, pg.Done)
    assert (
        "".join(delta.text for delta in deltas if isinstance(delta, pg.Delta))
        == done.slot.unwrap().text
    )


def test_its_errors_hold_the_reason_too() -> None:
    with pg.backends.load(config(fallback_backend="hf")) as route:
        error = pg.run(route, [{"prompt_token_ids": [10**9]}])[0].failure()
    assert (type(error), [type(one) for one in error.earlier]) == (
        pg.InvalidRequest,
        [pg.BackendFailed],
    )


def test_without_one_it_raises() -> None:
    for opened in (
        lambda: pg.backends.load(config()),
        lambda: pg.GenerationEngine(config()),
        lambda: pg.backends.vllm("embedded"),
    ):
        with pytest.raises(MissingExtra, match="the vLLM engine needs the package"):
            opened()


def test_where_both_are_missing_it_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(package: str, extra: str, purpose: str) -> None:
        need("no_such_package", extra, purpose)

    monkeypatch.setattr(pg.backends, "need", missing)
    with pytest.raises(MissingExtra, match="the Hugging Face engine needs the package"):
        pg.backends.load(config(fallback_backend="hf"))


def test_a_chat_file_falls_back_in_code() -> None:
    (agent,) = chat_from(
        {
            "backend": {
                "type": "vllm",
                "model": "embedded",
                "fallback_backend": "hf",
                "max_new_tokens": 4,
            }
        }
    ).agents
    with agent.open() as route:
        assert pg.run(route, [HI])[0].unwrap().route == "hf"


@pytest.mark.parametrize("by", ["flags", "chat file"])
def test_the_command_line_falls_back_and_says_so(
    by: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked, chat, out = tmp_path / "in.jsonl", tmp_path / "chat.yaml", tmp_path / "out.jsonl"
    asked.write_text(json.dumps(HI))
    chat.write_text("backend: {type: vllm, model: embedded, fallback_backend: hf}")
    flags = (
        ["--model", "embedded", "--backend", "vllm", "--fallback", "hf"]
        if by == "flags"
        else ["--config", str(chat)]
    )
    with pytest.raises(SystemExit) as left:
        main(["generate", str(asked), "-o", str(out), *flags])
    assert left.value.code == 0
    line = json.loads(out.read_text())
    assert (line["route"], [one["backend"] for one in line["tried"]]) == ("hf", ["vllm"])
    assert "the vLLM engine needs the package no_such_package" in (said := capsys.readouterr().err)
    assert "until then hf answers" in said


def test_the_command_line_refuses_where_nothing_takes_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (asked := tmp_path / "in.jsonl").write_text(json.dumps(HI))
    with pytest.raises(SystemExit) as left:
        main(["generate", str(asked), "--model", "embedded", "--backend", "vllm"])
    assert left.value.code == 2
    assert "the vLLM engine needs the package" in " ".join(capsys.readouterr().err.split())


def test_a_chat_falls_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (chat := tmp_path / "chat.yaml").write_text(
        "backend: {type: vllm, model: embedded, fallback_backend: hf, max_new_tokens: 4}"
    )
    with pytest.raises(SystemExit) as left:
        main(["chat", "--config", str(chat), "Hi", "--json"])
    assert left.value.code == 0
    assert json.loads(capsys.readouterr().out)["route"] == "hf"


def test_code_is_warned_once_that_another_engine_answers(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level("WARNING", "pipegen"),
        pg.backends.load(config(fallback_backend="hf")) as route,
    ):
        pg.run(route, [HI])
        pg.run(route, [HI])
    messages = [record.getMessage() for record in caplog.records]
    (words,) = [words for words in messages if "in the place of" in words]
    assert words.startswith("hf answers in the place of vllm: the vLLM engine needs the package")
