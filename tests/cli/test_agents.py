"""`pipegen generate --config`: one model of a chat file answers a whole file of requests."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipegen.cli import main
from pipegen.cli.run_flags import AskedFlags
from pipegen.cli.usage import load_of, runs_here
from pipegen.testing.fake import FakeEngine

Command = Callable[..., Any]
MESSAGES = {"messages": [{"role": "user", "content": "Hi"}]}
FILE = """
agents:
  - id: first
    system_message: Be brief.
    backend: {type: hf, model: one, max_new_tokens: 40, temperature: 0.5, seed: 3}
  - id: second
    backend: {type: vllm, model: two, base_url: "http://localhost:8000/v1", top_k: 5, extra_body: {priority: 1}}
"""


@pytest.fixture
def chat_file(tmp_path: Path) -> Path:
    file = tmp_path / "chat.yaml"
    file.write_text(FILE)
    return file


def test_the_agents_options_stand_below_file_flags_and_line(
    command: Command, engine: FakeEngine, jsonl: Any, chat_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "options.yaml").write_text("temperature: 0.6\nmax_new_tokens: 30\n")
    source = jsonl({**MESSAGES, "options": {"max_new_tokens": 10}}, MESSAGES)
    ran = command(
        *("generate", source, "-c", chat_file, "--agent", "first"),
        *("--options", tmp_path / "options.yaml", "--temperature", "0.7"),
    )
    assert ran.code == 0, ran.err
    said = [
        (row.options.max_new_tokens, row.options.temperature, row.options.seed)
        for row in engine.calls[-1]
    ]
    assert said == [(10, 0.7, 3), (30, 0.7, 3)]


def test_the_system_message_goes_before_messages_that_have_none(
    command: Command, engine: FakeEngine, jsonl: Any, chat_file: Path
) -> None:
    own = {"messages": [{"role": "system", "content": "Sing."}, {"role": "user", "content": "Hi"}]}
    batch = {"custom_id": "b", "method": "POST", "url": "/v1/chat/completions", "body": MESSAGES}
    ran = command(
        "generate",
        jsonl(MESSAGES, own, {"prompt": "Hi"}, batch),
        "-c",
        chat_file,
        "--agent",
        "first",
    )
    first, second, third, fourth = ran.out
    assert first["prompt_text"].count("Be brief.") == 1
    assert ("Be brief." in second["prompt_text"], "Sing." in second["prompt_text"]) == (False, True)
    assert (third["ok"], third["error"]["type"]) == (False, "InvalidRequest")
    assert fourth["response"]["status_code"] == 200
    assert len(engine.calls[-1]) == 3


def test_the_system_message_goes_before_messages_from_stdin_too(
    command: Command, chat_file: Path
) -> None:
    ran = command(
        "generate", "-", "-c", chat_file, "--agent", "first", stdin=json.dumps(MESSAGES).encode()
    )
    assert ran.out[0]["prompt_text"].count("Be brief.") == 1


def test_a_file_of_one_needs_no_name(
    command: Command, engine: FakeEngine, jsonl: Any, tmp_path: Path
) -> None:
    file = tmp_path / "one.yaml"
    file.write_text("backend: {type: hf, model: m, max_tokens: 7}")
    assert command("generate", jsonl(MESSAGES), "--config", file).code == 0
    assert engine.calls[-1][0].options.max_new_tokens == 7


def test_the_backend_is_that_of_the_file(chat_file: Path) -> None:
    made = load_of(AskedFlags(config=chat_file, agent="second"), {}, "hf")
    assert (
        made.model,
        made.backend.fallback_backend,
        made.system,
        made.backend.settings.extra_body,
    ) == ("two", "hf", None, {"priority": 1})
    assert (
        runs_here(made),
        runs_here(load_of(AskedFlags(config=chat_file, agent="first"), {})),
    ) == (False, True)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("-c", "FILE"), "--agent: .* holds first, second: choose one"),
        (("-c", "FILE", "--agent", "secnd"), "--agent: .*did you mean 'second'"),
        (("-c", "FILE", "--agent", "first", "--model", "m"), "--model: goes without --config"),
        (
            ("-c", "FILE", "--agent", "first", "--base-url", "http://h"),
            "--base-url: goes without --config",
        ),
        (
            ("-c", "FILE", "--agent", "first", "--trust-remote-code"),
            "--trust-remote-code: goes without --config",
        ),
        *(
            (
                ("-c", "FILE", "--agent", "first", "--backend", name),
                "--backend: goes without --config",
            )
            for name in ("vllm", "hf")
        ),
        (
            ("-c", "FILE", "--agent", "first", "--min-new-tokens", "50"),
            "--config: with the options of the chat file: .*min_new_tokens",
        ),
        (
            (
                "-c",
                "nowhere.yaml",
            ),
            "--config: .*cannot be read",
        ),
        (("--agent", "first", "--model", "m"), "--agent: takes --config FILE too"),
        (
            ("--config", "FILE", "--agent", "first", "--image-memory-bytes", "0"),
            "--image-memory-bytes: goes without --config",
        ),
        (("--config", "FILE", "--agent", "first", "--compile"), "--compile: goes without --config"),
        ((), "--model: say which model to ask"),
        *(
            (
                ("--model", "m", *flags),
                f"{flags[0]}: takes a file or a folder as IN, and a file as -o",
            )
            for flags in (("--retry", "all"), ("--restart",), ("--grace", "3"))
        ),
        *(
            (("--model", "m", "--overwrite", *out), "--overwrite: takes a file as -o OUT, or")
            for out in ((), ("-o", "-"))
        ),
        (("--model", "m", "--backend", ""), "--backend: takes one of hf, .*not ''"),
        (
            ("--model", "m", "--backend", "vllm_chat"),
            "--backend: takes one of hf, vllm, .*openai.*not 'vllm_chat'; did you mean",
        ),
    ],
)
def test_bad_usage_names_the_flag(
    command: Command,
    engine: FakeEngine,
    jsonl: Any,
    chat_file: Path,
    flags: tuple[str, ...],
    words: str,
) -> None:
    ran = command(
        "generate", jsonl(MESSAGES), *(chat_file if flag == "FILE" else flag for flag in flags)
    )
    assert (ran.code, engine.calls) == (2, [])
    output = " ".join(ran.err.replace("│", " ").split())
    assert re.search(f"Invalid value for {words}", output), output


def test_a_model_of_the_file_that_is_not_there_is_named_with_the_file(
    jsonl: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    file = tmp_path / "one.yaml"
    file.write_text(f"backend: {{type: hf, model: {tmp_path / 'nowhere'}}}")
    with pytest.raises(SystemExit) as left:
        main(["generate", str(jsonl(MESSAGES)), "--config", str(file)])
    assert left.value.code == 2
    assert re.search(
        r"Invalid value for --config: Hugging Face transformers: .*nowhere",
        " ".join(capsys.readouterr().err.split()),
    )
