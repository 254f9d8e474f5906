"""`pipegen generate` and `pipegen chat` at servers: a loopback stub that answers as vLLM and SGLang
do, and notes what it was sent.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.loopback import JsonHandler, Loopback

pytest.importorskip("aiohttp")
Command = Callable[..., Any]


USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}


class Handler(JsonHandler):
    def do_GET(self) -> None:
        model = {"id": "Qwen/Qwen3-4B", "object": "model", "max_model_len": 4096}
        self.send({"object": "list", "data": [model]})

    def do_POST(self) -> None:
        body = self.body()
        self.server.sent.append((self.path, dict(self.headers), body))
        if body["messages"][-1]["content"] == "break":
            fields = {"type": "BadRequestError", "code": 400}
            self.send({"error": {"message": "no such thing", **fields}}, 400)
        elif body.get("stream"):
            deltas: list[dict[str, Any]] = [
                {"role": "assistant", "content": ""},
                {"reasoning_content": "Hm."},
                {"content": "Hel"},
                {"content": "lo"},
            ]
            choices: list[dict[str, Any]] = [
                {"index": 0, "delta": delta, "finish_reason": None} for delta in deltas
            ]
            choices.append({"index": 0, "delta": {}, "finish_reason": "stop"})
            chunk = {"id": "c", "object": "chat.completion.chunk", "model": "m"}
            events = [{**chunk, "choices": [choice]} for choice in choices]
            self.send_events(*events, {**chunk, "choices": [], "usage": USAGE})
        else:
            message = {"role": "assistant", "content": "Hello", "reasoning_content": "Hm."}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            completion = {"id": "c", "object": "chat.completion", "model": "m"}
            self.send({**completion, "choices": [choice], "usage": USAGE})


@pytest.fixture
def stub() -> Iterator[Any]:
    """A chat server. `sent` holds (path, headers, body) of each request."""
    with Loopback(Handler, sent=[]) as server:
        yield server


@pytest.fixture
def chat_file(tmp_path: Path, stub: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MY_KEY", "sk-secret")
    file = tmp_path / "chat.yaml"
    file.write_text(f"""
agents:
  - id: first
    backend:
      type: vllm
      model: Qwen/Qwen3-4B
      base_url: {stub.url}/v1
      api_key: ${{MY_KEY}}
      top_k: 0
      repetition_penalty: 1.2
      enable_thinking: true
      extra_body: {{chat_template_kwargs: {{foo: 1}}}}
  - id: second
    backend: {{type: sglang, model: Qwen/Qwen3-4B, base_url: "{stub.url}", separate_reasoning: true}}
""")
    return file


def test_both_servers_are_asked_and_reasoning_is_apart(
    command: Command, chat_file: Path, stub: Any
) -> None:
    ran = command("chat", "--config", chat_file, "Hi", "--json")
    assert ran.code == 0, ran.err
    for line in ran.out:
        seen = (line["ok"], line["text"], line["reasoning"], line["completion_tokens"])
        assert seen == (True, "Hello", "Hm.", 3)
    bodies = {headers["Authorization"]: body for _, headers, body in stub.sent}
    assert all(path == "/v1/chat/completions" for path, _, _ in stub.sent)
    first, second = bodies["Bearer sk-secret"], bodies["Bearer EMPTY"]
    assert (first["top_k"], first["repetition_penalty"]) == (0, 1.2)
    assert first["chat_template_kwargs"] == {"enable_thinking": True, "foo": 1}  # H8
    assert second["separate_reasoning"] is True


def test_a_dry_run_shows_the_requests_without_keys_and_sends_nothing(
    command: Command, chat_file: Path, stub: Any
) -> None:
    ran = command("chat", "--config", chat_file, "Hi", "--dry-run")
    assert ran.code == 0
    assert [(line["agent"], line["method"], line["url"]) for line in ran.out] == [
        ("first", "POST", f"{stub.url}/v1/chat/completions"),
        ("second", "POST", f"{stub.url}/v1/chat/completions"),
    ]
    assert ran.out[0]["body"]["model"] == "Qwen/Qwen3-4B"
    assert ran.out[0]["body"]["messages"] == [{"role": "user", "content": "Hi"}]
    assert "sk-secret" not in json.dumps(ran.out) + ran.err
    assert stub.sent == []


def test_what_a_dry_run_shows_is_what_is_sent(command: Command, chat_file: Path, stub: Any) -> None:
    shown = command("chat", "--config", chat_file, "Hi", "--dry-run").out
    command("chat", "--config", chat_file, "Hi", "--json")
    sent = {
        headers["Authorization"]: {name: value for name, value in body.items() if name != "rid"}
        for _, headers, body in stub.sent
    }
    assert [line["body"] for line in shown] == [sent["Bearer sk-secret"], sent["Bearer EMPTY"]]


# H9
def test_an_option_that_a_server_lacks_fails_that_answer(
    command: Command, chat_file: Path, stub: Any
) -> None:
    chat_file.write_text(chat_file.read_text().replace("type: sglang", "type: vllm"))
    ran = command("chat", "--config", chat_file, "Hi", "--dry-run")
    assert ran.code == 1
    assert ran.out[1]["error"]["type"] == "UnsupportedOption"


def test_an_option_that_a_plain_server_may_not_know_says_how_to_send_it(
    command: Command, chat_file: Path, stub: Any
) -> None:
    chat_file.write_text(f"backend: {{type: openai, model: m, base_url: '{stub.url}', top_k: 5}}")
    ran = command("chat", "--config", chat_file, "Hi", "--dry-run")
    assert "put the field into extra_body" in ran.out[0]["error"]["hint"]
    chat_file.write_text(
        f"backend: {{type: openai, model: m, base_url: '{stub.url}', extra_body: {{top_k: 5}}}}"
    )
    assert command("chat", "--config", chat_file, "Hi", "--dry-run").out[0]["body"]["top_k"] == 5


def test_a_server_that_refuses_leaves_no_key_in_the_error(
    command: Command, chat_file: Path
) -> None:
    ran = command("chat", "--config", chat_file, "break", "--json")
    assert (ran.code, [line["ok"] for line in ran.out]) == (1, [False, False])
    assert "no such thing" in ran.out[0]["error"]["message"]
    assert "sk-secret" not in json.dumps(ran.out) + ran.err


def test_a_server_that_is_down_fails_its_own_answer_and_says_what_to_do(
    command: Command, chat_file: Path, stub: Any
) -> None:
    with socket.socket() as bound:  # bound, but not listening: nobody else gets this port meanwhile
        bound.bind(("127.0.0.1", 0))
        down = f"http://127.0.0.1:{bound.getsockname()[1]}"
        chat_file.write_text(
            chat_file.read_text().replace(f'"{stub.url}"', f'"{down}", retries: 0')
        )
        ran = command("chat", "--config", chat_file, "Hi", "--json")
    seen = (ran.code, [line["ok"] for line in ran.out], ran.out[0]["text"])
    assert seen == (1, [True, False], "Hello")
    assert ran.out[1]["error"]["hint"].startswith("see that a server runs there")
    assert down in ran.out[1]["error"]["message"]


def test_a_version_of_its_own_is_asked_as_it_stands(
    command: Command, chat_file: Path, stub: Any
) -> None:
    chat_file.write_text(chat_file.read_text().replace(f"{stub.url}/v1", f"{stub.url}/api/paas/v4"))
    assert command("chat", "--config", chat_file, "Hi", "--json").code == 0
    assert {path for path, _, _ in stub.sent} == {
        "/api/paas/v4/chat/completions",
        "/v1/chat/completions",
    }


def test_generate_asks_a_server_and_answers_batch_lines_in_their_form(
    command: Command, jsonl: Any, stub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipegen.cli import usage

    monkeypatch.setattr("pipegen.cli.generate.open_routes", usage.open_routes)
    batch = {
        "custom_id": "b",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5},
    }
    source = jsonl(
        {"id": "a", "messages": [{"role": "user", "content": "Hi"}]},
        batch,
        {**batch, "custom_id": "c", "body": {"messages": []}},
    )
    ran = command(
        *("generate", source, "--backend", "openai", "--base-url", stub.url),
        *("--model", "Qwen/Qwen3-4B", "--quiet"),
    )
    own, answer, refused = ran.out
    assert (ran.code, own["id"], own["text"]) == (1, "a", "Hello")
    message = answer["response"]["body"]["choices"][0]["message"]
    seen = (message["role"], message["content"], message["reasoning"], message["reasoning_content"])
    assert seen == ("assistant", "Hello", "Hm.", "Hm.")
    seen = (refused["custom_id"], refused["response"]["status_code"], refused["error"]["code"])
    assert seen == ("c", 400, "InvalidRequest")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--backend", "hf", "--base-url", "http://h"), "type 'hf' takes no such key"),
        (("--backend", "vllm_server", "--device", "cpu"), "takes no such key; hf do"),
        (("--backend", "sglang_server", "--timeout", "0"), "takes a number above 0, not 0"),
        (("--backend", "sglnag", "--base-url", "http://h"), "did you mean 'sglang'"),
    ],
)
def test_flags_that_a_backend_does_not_take_are_bad_usage(
    command: Command, jsonl: Any, flags: tuple[str, ...], words: str
) -> None:
    ran = command("generate", jsonl({"prompt": "Hi"}), "--model", "m", *flags)
    assert ran.code == 2
    assert words in " ".join(ran.err.replace("│", " ").split())


@pytest.fixture
def real(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The routes that the flags set, in place of the scripted engine."""
    from pipegen.cli import usage

    monkeypatch.setattr("pipegen.cli.generate.open_routes", usage.open_routes)


@pytest.mark.usefixtures("real")
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (["--served-model-name", "m2"], ["--served-model-name", "m-lora"]),
        (
            ["--extra-body", '{"reasoning_effort":"low"}'],
            ["--extra-body", '{"reasoning_effort":"high"}'],
        ),
        (["--extra-body", '{"seed_token":"one"}'], ["--extra-body", '{"seed_token":"two"}']),
        (["--dialect", "plain"], ["--dialect", "vllm"]),
        (["--dialect", "vllm"], ["--dialect", "sglang"]),
        ([], ["--server-limit"]),
        (["--dialect", "sglang"], ["--dialect", "sglang", "--separate-reasoning"]),
    ],
)
def test_what_a_server_is_asked_otherwise_is_asked_again(
    first: list[str], second: list[str], command: Command, stub: Any, jsonl: Any, tmp_path: Path
) -> None:
    asked, file, out = (
        [],
        jsonl({"messages": [{"role": "user", "content": "Hi"}]}),
        tmp_path / "out.jsonl",
    )
    for flags in (first, second, first, second):
        ran = command(
            *("generate", file, "-o", out, "--model", "m", "--backend", "openai"),
            *("--base-url", stub.url),
            *flags,
        )
        assert ran.code == 0, ran.err
        asked.append(len(stub.sent))
    assert asked == [1, 2, 2, 2]
    assert "2 finished before; 1 was made with these settings and is reused; 1 with " in ran.err
    assert not {"one", "two"} & {*(Path(f"{out}.job") / "job.json").read_text().split('"')}


@pytest.mark.usefixtures("real")
@pytest.mark.parametrize(
    "flags",
    [
        ["--timeout", "9"],
        ["--retries", "1"],
        ["--max-in-flight", "2"],
        ["--dialect", "plain"],
        ["--no-server-limit"],
    ],
)
def test_how_a_server_is_asked_keeps_the_rows(
    flags: list[str], command: Command, stub: Any, jsonl: Any, tmp_path: Path
) -> None:
    file, out = jsonl({"messages": [{"role": "user", "content": "Hi"}]}), tmp_path / "out.jsonl"
    for more, url in ([], stub.url), (flags, f"{stub.url}/v1/"):
        ran = command(
            *("generate", file, "-o", out, "--model", "m", "--backend", "openai"),
            *("--base-url", url),
            *more,
        )
        assert ran.code == 0, ran.err
    assert len(stub.sent) == 1


@pytest.mark.usefixtures("real")
def test_a_run_names_few_of_the_other_settings(
    command: Command, stub: Any, jsonl: Any, tmp_path: Path
) -> None:
    file, out = jsonl({"messages": [{"role": "user", "content": "Hi"}]}), tmp_path / "out.jsonl"
    for number in range(6):
        ran = command(
            *("generate", file, "-o", out, "--model", "m", "--backend", "openai"),
            *("--base-url", stub.url, "--temperature"),
            f"0.{number}",
        )
    assert (
        "5 finished before; none was made with these settings; 1 with temperature 0.0 (now 0.5); 1"
        " with temperature 0.1" in ran.err
    )
    assert "; 2 with others\n" in ran.err
