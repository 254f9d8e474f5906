"""`pipegen verify`: its verdict as text and JSON, its exit codes; what it asks and judges is in tests/report."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pipegen as pg
from pipegen.cli.verify import in_words
from pipegen.core.errors import CallFailed, Timeout
from pipegen.records.fields import InvalidField
from pipegen.report.causes import judge
from pipegen.report.verdict import Answer, Verdict

Command = Callable[..., Any]
RIGHT: dict[str, Any] = {
    "url": "http://h",
    "model": "m",
    "dialect": "vllm",
    "precision": "float32",
    "prompts": 2,
    "answers": 4,
    "agreeing": 4,
    "ways": ("chat", "ids"),
    "spread": 1e-6,
    "margin": 0.0,
    "faults": (),
}
OTHER = Answer(id="q", way="chat", expected=(1, 2), prompt_token_ids=(1, 9), token_ids=(3,), logprobs=(-1.0,), likeliest=((3, -1.0),))


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What `verify` was called with; its verdict, or error, is the first entry."""
    calls: list[Any] = [Verdict(**RIGHT)]

    def verify(url: str, model: str, requests: Any, **settings: Any) -> Verdict:
        calls.append((url, model, None if requests is None else [*requests], settings))
        settings["tell"](1, "asking")
        if isinstance(calls[0], Exception):
            raise calls[0]
        return calls[0]

    monkeypatch.setattr("pipegen.cli.verify.verify", verify)
    return calls


def test_a_right_server_is_told_as_text_and_as_json(command: Command, given: list[Any], tmp_path: Path) -> None:
    assert command("verify", "http://h", "--model", "m", "--quiet").code == 0
    ran = command("verify", "http://h", "--model", "m", "--json", "--summary", tmp_path / "s.json")
    assert (ran.code, ran.out[0]["right"], ran.out[0]["faults"]) == (0, True, [])
    assert json.loads((tmp_path / "s.json").read_text()) == {**ran.out[0], "exit_code": 0}
    assert given[1][2] is None  # what comes with pipegen
    assert in_words(Verdict(**RIGHT)).splitlines()[0] == "right: m at http://h (vllm), by chat and by ids"


def test_a_fault_is_exit_code_1_and_says_where_it_shows(command: Command, given: list[Any]) -> None:
    given[0] = Verdict(**{**RIGHT, "margin": 2.0, "faults": judge([OTHER]), "too_long": 1})
    ran = command("verify", "http://h", "--model", "m", "--json")
    assert (ran.code, ran.out[0]["faults"][0]["kind"], ran.out[0]["faults"][0]["first"]) == (1, "template", "q")
    words = in_words(given[0])
    assert words.startswith("not right: m at http://h")
    for part in ("template: the server renders", "in 1 of 1 answers by chat, first in q", "2 tokens of the prompt are expected", "largest margin", "too long"):
        assert part in words


def test_failed_requests_are_exit_code_1_and_a_few_are_shown(command: Command, given: list[Any]) -> None:
    given[0] = Verdict(**{**RIGHT, "failed": tuple((str(number), "chat", Timeout("slow")) for number in range(5)), "spread": None})
    assert command("verify", "http://h", "--model", "m").code == 1
    words = in_words(given[0])
    assert words.startswith("not known: ")
    assert "failed by chat: 0: Timeout: slow" in words
    assert "... and 2 more failed" in words


def test_requests_of_a_file_and_the_flags_reach_it(command: Command, given: list[Any], jsonl: Any) -> None:
    source = jsonl({"id": "a", "messages": [{"role": "user", "content": "Hi"}]}, "not JSON", {"prompt": "Hi"})
    flags = ("--dialect", "sglang", "--precision", "bfloat16", "--chat-only", "--max-new-tokens", "7", "--device", "cpu", "--served-model-name", "n")
    assert command("verify", "http://h", source, "--model", "m", *flags).code == 0
    _, _, asked, settings = given[1]
    assert [pg.is_ok(slot) for slot in asked] == [True, False, True]
    wanted = {"dialect": "sglang", "precision": "bfloat16", "chat_only": True, "max_new_tokens": 7, "device": "cpu", "served_model_name": "n"}
    assert wanted.items() <= settings.items()
    command("verify", "http://h", source, "--model", "m", "--rows", "1")
    assert len(given[2][2]) == 1


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--dialect", "vlm"), "takes one of vllm, sglang, plain"),
        (("--precision", "int8"), "takes one of float32, float16, bfloat16"),
        (("--max-new-tokens", "0"), "--max-new-tokens"),
    ],
)
def test_bad_flags_are_bad_usage(command: Command, given: list[Any], flags: tuple[str, ...], words: str) -> None:
    ran = command("verify", "http://h", "--model", "m", *flags)
    assert (ran.code, len(given)) == (2, 1)
    assert words in " ".join(ran.err.replace("│", " ").split())


def test_bad_usage_that_the_settings_find_and_a_server_that_is_down(command: Command, given: list[Any], tmp_path: Path) -> None:
    assert command("verify", "http://h").code == 2
    assert command("verify", "http://h", tmp_path / "missing.jsonl", "--model", "m").code == 2
    given[0] = InvalidField("base_url takes an address")
    assert command("verify", "h", "--model", "m").code == 2
    given[0] = ImportError("no torch")
    assert "cannot be used" in command("verify", "h", "--model", "m").err
    given[0] = CallFailed(Timeout("it is down"))
    ran = command("verify", "http://h", "--model", "m")
    assert ran.code == 1
    assert "it is down" in ran.err
