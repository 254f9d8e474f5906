"""`pipegen chat`: several models at once, as a screen, as plain text, as JSON, as a dry run, and as
a session.
"""

from __future__ import annotations

import asyncio
import dataclasses
import io
import json
import signal
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from returns.result import Failure, Success
from rich.console import Console

import pipegen as pg
from pipegen.cli import main
from pipegen.cli.answers_shown import Speaker, StreamedAnswer, as_line, ask
from pipegen.cli.app import CHAT
from pipegen.cli.chat_command import plain, screen, under
from pipegen.config import BackendConfig, chat_from, read_chat
from pipegen.testing.fake import FakeEngine, ToyRenderer

FILE = """
agents:
  - id: one
    system_message: Be brief.
    backend: {type: hf, model: first, max_new_tokens: 40}
  - id: two
    backend: {type: hf, model: second, stop: [END]}
ui: {display_type: simple}
"""


@pytest.fixture
def chat_file(tmp_path: Path) -> Path:
    file = tmp_path / "chat.yaml"
    file.write_text(FILE)
    return file


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> dict[str, FakeEngine]:
    """Scripted engines in place of the models of the file, by their names."""
    engines = {
        "first": FakeEngine("<think>Hm.</think>Hello"),
        "second": FakeEngine("Bye END of it"),
    }
    monkeypatch.setattr(
        BackendConfig, "first", lambda self, *, dry=False: pg.route(engines[self.model])
    )
    return engines


Command = Callable[..., Any]


def test_each_model_is_asked_with_its_own_options(
    command: Command, capsysbinary: Any, chat_file: Path, models: dict[str, FakeEngine]
) -> None:
    ran = command("chat", "--config", chat_file, "Hi", "--json")
    assert ran.code == 0
    first, second = ran.out
    seen = (first["agent"], first["model"], first["reasoning"], first["text"], first["ok"])
    assert seen == ("one", "first", "Hm.", "Hello", True)
    assert (second["text"], second["finish"], second["stop"]) == ("Bye ", "stop_string", "END")
    assert second["tokens_per_second"] > 0
    assert "Be brief." in first["prompt_text"]
    assert first["options"]["max_new_tokens"] == 40


def test_plain_text_where_there_is_no_terminal(
    chat_file: Path, models: dict[str, FakeEngine], capsys: Any
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["chat", "-c", str(chat_file), "Hi"])
    assert left.value.code == 0
    assert capsys.readouterr().out.startswith("one (first)\n[reasoning]\nHm.\n[answer]\nHello\n[")


def test_a_terminal_shows_the_answers_side_by_side(
    chat_file: Path, models: dict[str, FakeEngine], capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # to rich, this is a terminal
    monkeypatch.setenv("COLUMNS", "90")
    chat_file.write_text(
        chat_file.read_text().replace("display_type: simple", "display_type: rich_terminal")
    )
    with pytest.raises(SystemExit) as left:
        main(["chat", "-c", str(chat_file), "Hi"])
    assert left.value.code == 0
    shown = capsys.readouterr().out
    assert "\x1b[2;3mHm." in shown
    assert any("Bye" in line and "Hm." in line for line in shown.splitlines())


def test_a_session_goes_on_by_the_ids_of_the_turns_before(
    command: Command, chat_file: Path, models: dict[str, FakeEngine]
) -> None:
    ran = command("chat", "-c", chat_file, "--json", stdin=b"Hi\n\nAgain\n/clear\nNew\n")
    first, second, new = (line for line in ran.out if line["agent"] == "one")
    assert [line["exact"] for line in (first, second, new)] == [None, True, None]
    assert second["prompt_text"].count("Hello") == 1 and "Again" not in new["prompt_text"]
    sent = models["first"].calls[1][0].prompt.token_ids
    before = models["first"].calls[0][0].prompt.token_ids
    text = "<think>Hm.</think>Hello"  # what it thought stays, since it was sampled
    assert sent[: len(before)] == before
    assert models["first"].tokenizer.decode(sent[len(before) :]).startswith(text)


def test_a_session_with_a_template_that_has_no_next_turn_renders_all_turns_again(
    command: Command, chat_file: Path, models: dict[str, FakeEngine]
) -> None:
    models["first"] = FakeEngine("Hello", renderer=Counting())
    ran = command("chat", "-c", chat_file, "--json", stdin=b"Hi\nAgain\n")
    lines = [line for line in ran.out if line["agent"] == "one"]
    assert [line["ok"] for line in lines] == [True, True]
    assert "Hello" in lines[1]["prompt_text"] and lines[1]["exact"] is False


class Counting(ToyRenderer):
    """Its prompts depend on earlier answers."""

    def render(self, messages: Any, **more: Any) -> str:
        said = [one["content"] for one in messages if one["role"] == "assistant"]
        return f"{sum(map(len, said))} {super().render(messages, **more)}{said}"


def test_one_that_fails_leaves_the_others_and_its_history_alone(
    chat_file: Path, models: dict[str, FakeEngine], command: Command
) -> None:
    text = chat_file.read_text().replace("stop: [END]", "no_repeat_ngram_size: 2")
    chat_file.write_text(text)
    models["second"] = FakeEngine("x", honours=frozenset({"stream"}))
    ran = command("chat", "-c", chat_file, "Hi", "--json")
    assert (ran.code, ran.out[0]["ok"], ran.out[1]["ok"]) == (1, True, False)
    assert ran.out[1]["error"]["type"] == "UnsupportedOption"


@pytest.mark.parametrize("flags", [("--json",), ()])
def test_who_interrupts_keeps_the_answers_that_are_whole(
    flags: tuple[str, ...], chat_file: Path, models: Any, capsys: Any, monkeypatch: Any
) -> None:
    async def one_answers_and_then_ctrl_c(
        speakers: Any, prompt: str, began: Any, changed: Any
    ) -> None:
        first, second = StreamedAnswer(speakers[0]), StreamedAnswer(speakers[1])
        began([first, second])
        first.end(pg.run(speakers[0].route, [{"prompt": prompt}])[0])
        signal.raise_signal(signal.SIGINT)
        await asyncio.Event().wait()

    monkeypatch.setattr("pipegen.cli.chat_command.ask", one_answers_and_then_ctrl_c)
    with pytest.raises(SystemExit) as left:
        main(["chat", "-c", str(chat_file), "Hi", *flags])
    assert left.value.code == 130
    shown = capsys.readouterr().out
    assert "Hello" in shown
    assert "two" not in shown


def test_a_dry_run_of_a_model_in_this_process_shows_the_call(
    chat_file: Path, models: dict[str, FakeEngine], command: Command
) -> None:
    ran = command("chat", "-c", chat_file, "Hi", "--dry-run")
    assert [(line["agent"], line["method"], line["url"]) for line in ran.out] == [
        ("one", "call", None),
        ("two", "call", None),
    ]
    assert ran.out[0]["body"]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
    ]
    assert ran.out[0]["body"]["options"] == {"max_new_tokens": 40}
    assert all(engine.calls == [] for engine in models.values())


def test_a_turn_is_logged_where_the_file_says_so(
    chat_file: Path,
    models: dict[str, FakeEngine],
    command: Command,
    monkeypatch: Any,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    command("chat", "-c", chat_file, "Hi", "--json")
    assert not (tmp_path / ".pipegen").exists()
    chat_file.write_text(
        chat_file.read_text().replace("display_type: simple", "logging_enabled: true")
    )
    command("chat", "-c", chat_file, "Hi", "--json")
    command("chat", "-c", chat_file, "Hi", "--json")
    log = tmp_path / ".pipegen" / "chat.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line.get("prompt") or line["text"] for line in lines] == ["Hi", "Hello", "Bye "] * 2
    assert (log.stat().st_mode & 0o777, log.parent.stat().st_mode & 0o777) == (0o600, 0o700)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-c", "nowhere.yaml", "Hi"), "cannot be read"),
        (("-c", "FILE", "--dry-run"), "takes a PROMPT"),
    ],
)
def test_bad_usage_says_what_is_wrong(
    command: Command, chat_file: Path, arguments: tuple[str, ...], words: str
) -> None:
    ran = command(
        "chat", *(str(chat_file) if argument == "FILE" else argument for argument in arguments)
    )
    assert ran.code == 2
    assert words in ran.err


def test_the_chat_file_that_the_help_shows_is_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MY_KEY", "sk-mine")
    shown = CHAT.split("\b\n")[1].split("\n\n")[0]
    (tmp_path / "chat.yaml").write_text(textwrap.dedent(shown))
    first, second = read_chat(tmp_path / "chat.yaml").agents
    seen = (first.id, first.backend.backend, second.system_message, second.backend.settings.dialect)
    assert seen == ("here", "hf", "Be brief.", "vllm")


def test_the_schema_is_printed(capsys: Any) -> None:
    with pytest.raises(SystemExit) as left:
        main(["schema"])
    assert not left.value.code
    assert json.loads(capsys.readouterr().out)["title"] == "pipegen chat"


def answers(*engines: FakeEngine) -> list[StreamedAnswer]:
    """The finished answers of scripted engines."""
    agents = [
        {"id": f"agent{position}", "backend": {"type": "hf", "model": f"model{position}"}}
        for position in range(len(engines))
    ]
    chat = chat_from({"agents": agents})
    speakers = [
        Speaker(agent, pg.route(engine)) for agent, engine in zip(chat.agents, engines, strict=True)
    ]
    return asyncio.run(ask(speakers, "Hi", lambda begun: None, lambda changed: None))


def drawn(
    shown: list[StreamedAnswer], width: int, *, whole: bool = True, height: int = 24
) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height)
    console.print(screen(shown, console, whole=whole))
    output = console.file
    assert isinstance(output, io.StringIO)
    return output.getvalue().splitlines()


def test_answers_stand_side_by_side_and_below_each_other_where_it_is_narrow() -> None:
    shown = answers(FakeEngine("Hello"), FakeEngine("Goodbye"))
    wide = drawn(shown, 80)
    assert wide[0].count("─ agent") == 2
    assert any("Hello" in line and "Goodbye" in line for line in wide)
    assert "tokens" in wide[-1]
    narrow = drawn(shown, 40)
    assert not any("Hello" in line and "Goodbye" in line for line in narrow)


def test_while_it_comes_the_end_of_a_long_answer_is_shown() -> None:
    (answer,) = answers(FakeEngine("x"))
    answer.slot, answer.text = None, "\n".join(f"line {number}" for number in range(100))
    lines = drawn([answer], 60, whole=False, height=12)
    assert len(lines) < 12
    assert any("line 99" in line for line in lines)
    assert not any("line 50" in line for line in lines)


def test_the_next_turn_of_a_chat_server_has_no_thoughts_and_no_calls() -> None:
    (answer,) = answers(FakeEngine("<think>deep</think>Hello"))
    last = answer.speaker.last
    assert last is not None and last.message == {"role": "assistant", "content": "Hello"}


def test_reasoning_is_dimmed_and_control_characters_are_shown() -> None:
    (answer,) = answers(FakeEngine("<think>deep</think>the \x1b[2Janswer"))
    console = Console(file=io.StringIO(), width=60, record=True, force_terminal=True)
    console.print(screen([answer], console, whole=True))
    svg = console.export_text(styles=True)
    assert "\x1b[2;3mdeep" in svg
    assert "\x1b[2J" not in svg
    assert "\\x1b[2J" in plain(answer)


def test_of_several_samples_the_first_is_shown_and_named_as_one() -> None:
    agents = {"backend": {"type": "hf", "model": "m", "n": 2, "temperature": 1.0}}
    (agent,) = chat_from(agents).agents
    (answer,) = asyncio.run(
        ask(
            [Speaker(agent, pg.route(FakeEngine("Hello")))],
            "Hi",
            lambda begun: None,
            lambda changed: None,
        )
    )
    assert "one of 2" in under(answer)
    assert answer.parts() == ("", "Hello")


def test_a_failed_answer_says_why() -> None:
    (answer,) = answers(FakeEngine("x"))
    answer.end(Failure(pg.Timeout("no answer within 5 s")))
    assert under(answer).startswith("failed after")
    assert "Timeout: no answer within 5 s" in plain(answer)
    assert json.loads(as_line(answer))["error"]["type"] == "Timeout"


def test_reasoning_that_the_template_opened_is_told_from_the_answer() -> None:
    (answer,) = answers(FakeEngine("two and two</think>4"))
    assert answer.parts() == ("two and two", "4")
    assert answer.slot is not None
    result = answer.slot.unwrap()
    answer.slot = Success(dataclasses.replace(result, text="two and", prompt_text="...<think>\n"))
    assert answer.parts() == ("two and", "")


def test_one_model_is_asked_without_a_chat_file(
    command: Command, models: dict[str, FakeEngine]
) -> None:
    ran = command("chat", "--model", "first", "--system", "Be brief.", "Hi", "--json")
    (answer,) = ran.out
    assert (ran.code, answer["agent"], answer["text"]) == (0, "hf", "Hello")
    assert "Be brief." in answer["prompt_text"]


def test_a_model_without_a_chat_file_may_be_at_a_server(command: Command) -> None:
    flags = ("--model", "m", "--backend", "vllm", "--base-url", "http://localhost:1/v1")
    (line,) = command("chat", *flags, "Hi", "--dry-run").out
    assert line["url"].startswith("http://localhost:1/")
    assert line["body"]["messages"] == [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((), "say which model to ask: --model NAME"),
        (("--config", "FILE", "--model", "m"), "--model: goes without --config"),
        (("--config", "FILE", "--base-url", "m"), "--base-url: goes without --config"),
        (("--model", "m", "--backend", "vlm"), "did you mean 'vllm'"),
        (("--model", "no/such/folder/"), "--model"),
    ],
)
def test_a_chat_takes_a_file_or_a_model(
    flags: tuple[str, ...], words: str, command: Command, chat_file: Path
) -> None:
    ran = command("chat", *[str(chat_file) if one == "FILE" else one for one in flags], "Hi")
    assert ran.code == 2
    assert words in " ".join(ran.err.replace("│", " ").split())
