"""What a run will take: exact prompt tokens, shared prefixes, over-long requests, money and
time.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pipegen as pg
from pipegen.cli.estimate_command import Estimate, in_words, prepared
from pipegen.drivers.arguments import Admission
from pipegen.testing.fake import FakeEngine

Command = Callable[..., Any]
MODEL = ("--model", "fake")


@pytest.fixture
def estimated(command: Command, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setattr("pipegen.cli.estimate_command.open_route", lambda load: pg.route(engine))
    return lambda *arguments: command("estimate", *arguments, *MODEL)


def test_the_counts_are_those_of_the_run(
    estimated: Command, generate: Command, engine: FakeEngine, jsonl: Any, tmp_path: Path
) -> None:
    (tmp_path / "good.png").write_bytes(b"good")
    lines = [
        {"id": "a", "prompt": "Hello"},
        {
            "id": "b",
            "messages": [{"role": "user", "content": "Hi"}],
            "options": {"samples": 3, "temperature": 1},
        },
    ]
    source = jsonl(*lines, {"id": "c", "prompt": "What?", "images": ["good.png"]})
    ran = estimated(source, "--json", "--max-new-tokens", "10")
    assert (ran.code, engine.calls) == (0, [])
    (estimate,) = ran.out
    lines = generate(source, "--max-new-tokens", "10").out
    assert estimate["prompt_tokens"] == sum(line["prompt_tokens"] for line in lines)
    longest = max(lines, key=lambda line: line["prompt_tokens"])
    assert estimate["longest_prompt"] == {"id": longest["id"], "tokens": longest["prompt_tokens"]}
    assert (
        estimate["requests"],
        estimate["failed"],
        estimate["images"],
        estimate["most_completion_tokens"],
    ) == (3, 0, 1, 50)
    assert estimate["image_tokens"] > 0


def test_requests_that_continue_a_conversation_are_counted_as_they_run(
    estimated: Command, engine: FakeEngine, jsonl: Any
) -> None:
    route, user = pg.route(engine), {"role": "user", "content": "Hi"}
    first = pg.run(route, [{"messages": [user]}])[0].unwrap()
    ids = {"prompt_token_ids": first.prompt_token_ids, "token_ids": first.token_ids}
    line = {
        "messages": [user, first.message, {"role": "user", "content": "And?"}],
        "continues": {"messages": 2, **ids},
    }
    second = pg.run(route, [first.then("And?")])[0].unwrap()
    (estimate,) = estimated(jsonl({"id": "a", **line}), "--json").out
    assert (estimate["prompt_tokens"], estimate["failed"]) == (second.prompt_tokens, 0)


def test_later_turns_are_counted_and_their_prompts_are_not(estimated: Command, jsonl: Any) -> None:
    source = jsonl({"id": "a", "turns": ["Hi", "And?", "So?"]}, {"id": "b", "prompt": "Hi"})
    alone = jsonl({"id": "a", "turns": ["Hi"]}, {"id": "b", "prompt": "Hi"}, name="alone.jsonl")
    flags = ("--json", "--max-new-tokens", "10")
    ran, first = estimated(source, *flags), estimated(alone, *flags).out[0]
    assert ran.code == 0
    assert ran.out[0] == {**first, "later_turns": 2, "most_completion_tokens": 40}
    assert first["later_turns"] == 0 and first["most_completion_tokens"] == 20
    assert "later turns       2: their answers are counted" in in_words(ran.out[0])


def test_what_would_fail_is_counted_and_over_long_prompts_are_named(
    estimated: Command, jsonl: Any
) -> None:
    source = jsonl(
        {"id": "long", "prompt": "x" * 50},
        {"id": "fits", "prompt": "x"},
        {"id": "typo", "promt": "x"},
    )
    ran = estimated(source, "--max-prompt-tokens", "20", "--json")
    (estimate,) = ran.out
    assert ran.code == 1
    assert estimate["too_long"] == [{"id": "long", "tokens": 50}]
    assert {kind: found["count"] for kind, found in estimate["errors"].items()} == {
        "PromptTooLong": 1,
        "InvalidRequest": 1,
    }
    words = in_words(estimate)
    assert "2 would fail:" in words
    assert "too long: long (50)" in words


def test_prices_and_speeds_give_the_most_that_it_takes(estimated: Command, jsonl: Any) -> None:
    source = jsonl({"prompt": "x" * 100}, {"prompt": "y" * 100})
    (estimate,) = estimated(
        source, "--max-new-tokens", "1000", "--price", "1,2", "--speed", "10", "--json"
    ).out
    seen = (estimate["prompt_cost"], estimate["most_cost"], estimate["most_seconds"])
    assert seen == (0.0002, 0.0042, 200.0)
    words = in_words(estimate)
    assert "cost              at most 0.00, of it 0.00 for the prompts" in words
    assert "time              at most 3:20" in words
    assert "prompt tokens     200, 100.0 a request" in words


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--price", "cheap"], "takes two prices"),
        (["--price", "-1,2"], "takes prices of at least 0"),
        (["--speed", "0"], "takes tokens a second, above 0"),
    ],
)
def test_wrong_prices_and_speeds_are_bad_usage(
    estimated: Command, jsonl: Any, flags: list[str], words: str
) -> None:
    ran = estimated(jsonl({"prompt": "x"}), *flags)
    assert ran.code == 2
    assert words in " ".join(ran.err.split())


def test_nothing_to_count_is_bad_usage(estimated: Command, tmp_path: Path) -> None:
    assert "say what would be asked" in " ".join(estimated().err.split())
    assert estimated(tmp_path / "gone.jsonl").code == 2
    (one,) = estimated("--prompt", "What is it?", "--json").out
    assert one["requests"] == 1


def test_a_table_and_a_chat_file_s_system_message_count_too(
    estimated: Command, tmp_path: Path
) -> None:
    source = tmp_path / "in.csv"
    source.write_text("question\nHello\n")
    (estimate,) = estimated(source, "--map", "prompt=question", "--json").out
    assert (estimate["requests"], estimate["prompt_tokens"]) == (1, 5)


def test_a_prompt_whose_tokens_were_not_counted_is_listed_without_them(
    estimated: Command, jsonl: Any, engine: FakeEngine
) -> None:
    (plain,) = estimated(jsonl({"id": "a", "prompt": "x" * (17 * 2**20)}), "--json").out
    assert plain["too_long"] == [{"id": "a", "tokens": None}]
    assert "too long: a (not counted)" in in_words(plain)


def test_a_chat_server_tells_no_tokens(command: Command, jsonl: Any) -> None:
    pytest.importorskip("aiohttp")
    ran = command(
        *("estimate", jsonl({"prompt": "Hi"}), "--model", "m", "--backend", "openai"),
        *("--base-url", "http://127.0.0.1:9/v1"),
    )
    assert ran.code == 2
    assert "does not tell how many tokens a prompt has: take --backend hf" in " ".join(
        ran.err.split()
    )


def test_no_weights_are_loaded(jsonl: Any, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    with pg.backends.hf("embedded") as route:
        estimate = Estimate()
        for name, (slot, _) in zip(
            "ab",
            prepared(route, Admission().batch([{"prompt": "Hi"}, {"prompt": "Ho"}])),
            strict=True,
        ):
            estimate.add(name, slot)
        assert estimate.prompt_tokens == 2 * pg.count_tokens(route, {"prompt": "Hi"}).unwrap()
        engine: Any = route.engine
        assert not engine.loaded


# Prefixes


def shared(*prompts: str, images: Any = ()) -> int:
    requests = [
        {"prompt": prompt, "images": [image]} if image else {"prompt": prompt}
        for prompt, image in zip(prompts, images or [None] * len(prompts), strict=True)
    ]
    estimate = Estimate()
    for slot, _ in prepared(pg.route(FakeEngine("")), Admission().batch(requests)):
        estimate.add("x", slot)
    return estimate.shared_tokens


def test_whole_blocks_that_an_earlier_prompt_begins_with_are_shared() -> None:
    assert shared("a" * 40, "a" * 33 + "b") == 32
    assert shared("a" * 40, "b" + "a" * 39) == 0
    assert shared("a" * 40, "b" * 16 + "a" * 24) == 0  # a block in another place is another block
    assert shared("a" * 64, "b" * 64, "a" * 64, "b" * 17) == 64 + 16
    assert shared("short", "short") == 0


def test_prompts_with_other_images_share_only_what_is_before_them() -> None:
    question = "What do you see in this image, and where in it is each of the things?"
    same = shared(question, question, images=[b"good", b"good"])
    other = shared(question, question, images=[b"good", b"good too"])
    assert same >= 64
    assert other < 32


def test_the_json_is_strict(estimated: Command, jsonl: Any) -> None:
    (estimate,) = estimated(jsonl(), "--json").out
    assert json.loads(json.dumps(estimate, allow_nan=False))["longest_prompt"] is None
    assert "requests          0" in in_words(estimate)
