"""Answers whose tokens ran out while the model was thinking say so: in the record, on the screen,
in the summary, and in the exit code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pipegen as pg
from pipegen.cli import main
from pipegen.config import BackendConfig, chat_from
from pipegen.io.jsonl import from_plain, to_plain
from pipegen.testing.fake import FakeEngine
from pipegen.testing.faulty import FaultyServer

Command = Callable[..., Any]
LINE = {"prompt": "Hi", "options": {"max_new_tokens": 6}}


@pytest.fixture
def chat_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    engines = {
        "stuck": FakeEngine("<think>Let me see, two and two"),
        "done": FakeEngine("<think>Hm.</think>Hello"),
    }
    monkeypatch.setattr(
        BackendConfig, "open", lambda self, *, dry=False: pg.route(engines[self.model])
    )
    file = tmp_path / "chat.yaml"
    file.write_text(
        "backend: {type: hf, model: stuck, max_new_tokens: 6}\nui: {display_type: simple}\n"
    )
    return file


def test_a_record_says_so(command: Command, engine: FakeEngine) -> None:
    (slot,) = pg.run(pg.route(FakeEngine("<think>Let me see")), [LINE])
    assert slot.unwrap().thinking_unfinished
    assert from_plain(to_plain(slot)).unwrap().thinking_unfinished
    for text in ("Let me see", "<think>a</think>Let me"):
        assert not pg.run(pg.route(FakeEngine(text)), [LINE])[0].unwrap().thinking_unfinished
    # it ended by itself
    assert not pg.run(pg.route(FakeEngine("<think>Le")), [LINE])[0].unwrap().thinking_unfinished


def test_chat_shows_no_answer_and_exits_with_1(
    chat_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["chat", "-c", str(chat_file), "Hi"])
    assert left.value.code == 1
    assert (
        "no answer: the tokens ran out while the model was thinking; allow more with max_new_tokens"
        in capsys.readouterr().out
    )


def test_chat_keeps_it_out_of_the_history(chat_file: Path, command: Command) -> None:
    ran = command("chat", "-c", chat_file, "--json", stdin=b"Hi\nAgain\n")
    assert (ran.code, [line["thinking_unfinished"] for line in ran.out]) == (1, [True, True])
    assert "Let me" not in ran.out[1]["prompt_text"]
    chat_file.write_text(chat_file.read_text().replace("stuck, max_new_tokens: 6", "done"))
    assert command("chat", "-c", chat_file, "Hi", "--json").code == 0


def test_generate_counts_it_and_exits_with_1(
    command: Command, jsonl: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "pipegen.cli.generate.open_routes", lambda load: pg.route(FakeEngine("<think>Let me see"))
    )
    ran = command("generate", jsonl(LINE, {"prompt": "Hi"}), "--model", "m")
    assert (ran.code, [line["thinking_unfinished"] for line in ran.out]) == (1, [True, False])
    assert "1 without an answer: the tokens ran out while the model was thinking" in ran.err


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    pytest.importorskip("aiohttp")
    with FaultyServer(limit=0) as running:
        running.keeps_bodies = True
        yield running


@pytest.mark.parametrize(
    ("message", "unfinished"),
    [
        ({"content": None, "reasoning_content": "Two and"}, True),
        ({"content": "  ", "reasoning": "Two and"}, True),
        ({"content": "<think>Two and"}, True),
        ({"content": "4", "reasoning": "Two and two."}, False),
        (
            {
                "content": None,
                "reasoning": "a",
                "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{}"}}],
            },
            False,
        ),
    ],
)
def test_a_chat_servers_answer_says_so(
    server: FaultyServer, message: dict[str, Any], unfinished: bool
) -> None:
    choice = {"index": 0, "finish_reason": "length", "message": {"role": "assistant", **message}}
    server.answers["/v1/chat/completions"] = (
        200,
        {"choices": [choice], "usage": {"completion_tokens": 512}},
    )
    with pg.backends.openai_server("toy", base_url=server.url, dialect="vllm") as route:
        assert pg.run(route, [{"prompt": "Hi"}])[0].unwrap().thinking_unfinished is unfinished


@pytest.mark.parametrize(
    ("said", "options", "length"),
    [
        ({}, None, None),  # the server's own limit
        ({"max_tokens": 9}, None, 9),
        ({"server_limit": False}, None, 512),
        ({}, pg.GenerationOptions(max_new_tokens=7), 7),
        ({"extra_body": {"max_tokens": 8}}, None, 8),
    ],
)
@pytest.mark.parametrize("kind", ["vllm", "sglang", "openai"])
def test_a_file_that_says_no_length_leaves_it_to_the_server(
    server: FaultyServer,
    kind: str,
    said: dict[str, Any],
    options: pg.GenerationOptions | None,
    length: int | None,
) -> None:
    backend = (
        chat_from({"backend": {"type": kind, "model": "toy", "base_url": server.url, **said}})
        .agents[0]
        .backend
    )
    with backend.open() as route:
        result = pg.run(route, [{"prompt": "Hi"}], options or backend.options)[0].unwrap()
        again = pg.run(route, [{"prompt": "Hi"}], result.options)[0].unwrap()
    assert [body.get("max_tokens") for body in server.bodies] == [length, length]
    assert result.options.max_new_tokens == again.options.max_new_tokens == length


@pytest.mark.parametrize(
    ("said", "options", "length"),
    [
        ({}, None, 0),  # what the prompt leaves of the server's limit
        ({"max_new_tokens": 9}, None, 9),
        ({"server_limit": False}, None, 512),
        ({}, pg.GenerationOptions(max_new_tokens=7), 7),
        ({}, pg.GenerationOptions(use_generation_config=True), 0),
    ],
)
@pytest.mark.parametrize("kind", ["vllm_server", "sglang_server"])
def test_a_file_that_says_no_length_lets_a_server_asked_by_ids_fill_its_context(
    kind: str, said: dict[str, Any], options: pg.GenerationOptions | None, length: int
) -> None:
    pytest.importorskip("aiohttp")
    with FaultyServer(share=0, limit=700) as server:
        server.keeps_bodies = True
        backend = (
            chat_from(
                {"backend": {"type": kind, "model": "embedded", "base_url": server.url, **said}}
            )
            .agents[0]
            .backend
        )
        with backend.open() as route:
            first, second = pg.run(
                route,
                [{"prompt": "Hi"}, {"prompt": "Hi to all of you"}],
                options or backend.options,
            )
            again = pg.run(route, [{"prompt": "Hi"}], first.unwrap().options)[0].unwrap()
            too_long = pg.run(route, [{"prompt": "Hi " * 900}], options or backend.options)[
                0
            ].failure()
        lengths = [
            body.get("max_tokens", 0)
            or body["sampling_params"].get(
                "max_tokens", body["sampling_params"].get("max_new_tokens")
            )
            for body in server.bodies
        ]
    wanted = [length or 700 - slot.unwrap().prompt_tokens for slot in (first, second)]
    assert (sorted(lengths[:2]), lengths[2:]) == (sorted(wanted), [wanted[0]])
    assert (first.unwrap().options.max_new_tokens, again.options.max_new_tokens) == (
        wanted[0],
        wanted[0],
    )
    assert first.unwrap().clipped_from is None
    assert isinstance(too_long, pg.PromptTooLong)


def test_an_answer_of_a_server_asked_by_ids_that_ran_out_while_thinking_says_so() -> None:
    pytest.importorskip("aiohttp")
    with FaultyServer(share=0, limit=40) as server:
        backend = (
            chat_from(
                {"backend": {"type": "vllm_server", "model": "embedded", "base_url": server.url}}
            )
            .agents[0]
            .backend
        )
        with backend.open() as route:
            thoughts = pg.run(route, [{"prompt": "<think>and then"}])[0].unwrap().prompt_token_ids
            server.reply = lambda ids: [*thoughts, *thoughts[-1:] * 100]
            result = pg.run(route, [{"prompt": "Hi"}], backend.options)[0].unwrap()
    seen = (result.finish, result.thinking_unfinished, result.completion_tokens)
    assert seen == (pg.Finish.LENGTH, True, 40 - result.prompt_tokens)


def test_a_route_made_in_code_has_pipegens_default(server: FaultyServer) -> None:
    with pg.backends.openai_server("toy", base_url=server.url) as route:
        pg.run(route, [{"prompt": "Hi"}])
    with pg.backends.openai_server("toy", base_url=server.url, server_limit=True) as route:
        pg.run(route, [{"prompt": "Hi"}])
    assert [body.get("max_tokens") for body in server.bodies] == [512, None]
