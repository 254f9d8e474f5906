"""Prompts with log probabilities, and rows of no tokens: what the engine is asked, by every driver,
and what is refused.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from returns.result import Success

import pipegen as pg
from pipegen.core.errors import CallFailed
from pipegen.drivers.drive import drive
from pipegen.records.options import resolve
from pipegen.records.results import Encoded, Prompt, Raw, ThoughtForm
from pipegen.stages.calling import call
from pipegen.stages.ending import decode
from pipegen.testing.fake import FakeEngine

READ = {"max_new_tokens": 0, "prompt_logprobs": True}


def route(script: Any = "an answer", **settings: Any) -> tuple[pg.Route, FakeEngine]:
    engine = FakeEngine(script, **settings)
    return pg.route(engine), engine


def values(result: pg.GenerationResult) -> list[float | None]:
    return [None if one is None else one.logprob for one in result.prompt_logprobs or ()]


def test_a_prompt_has_its_log_probabilities_beside_the_answer() -> None:
    own, engine = route()
    result = pg.run(own, [{"prompt": "Hi!", "options": {"prompt_logprobs": True}}])[0].unwrap()
    assert result.text == "an answer"
    assert values(result) == [None, -1.105, -1.033]
    assert result.prompt_logprobs is not None
    last = result.prompt_logprobs[2]
    assert last is not None
    assert (last.token_id, last.text, last.top, last.top_texts) == (33, "!", ((32, -0.5),), (" ",))
    assert len(engine.calls) == len(engine.scored) == 1


def test_where_nothing_is_to_be_generated_the_engine_generates_nothing() -> None:
    own, engine = route()
    for options in (READ, {"max_new_tokens": 0}):
        result = pg.run(own, [{"prompt": "Hi"}], options)[0].unwrap()
        assert (
            result.text,
            result.raw_text,
            result.token_ids,
            result.finish,
            result.completion_tokens,
        ) == ("", "", (), pg.Finish.LENGTH, 0)
        assert (result.prompt_logprobs is not None) == ("prompt_logprobs" in options)
    assert engine.calls == []
    assert len(engine.scored) == 1


def test_each_row_has_what_it_asks_for() -> None:
    own, engine = route()
    asked = [
        {"prompt": "ab"},
        {"prompt": "cd", "options": READ},
        {"nothing": 1},
        {"prompt": "ef", "options": {"prompt_logprobs": True}},
    ]
    slots = pg.run(own, asked)
    assert [pg.is_ok(slot) for slot in slots] == [True, True, False, True]
    seen = [slot.unwrap().text for slot in slots if pg.is_ok(slot)]
    assert seen == ["an answer", "", "an answer"]
    assert slots[0].unwrap().prompt_logprobs is None
    assert (values(slots[1].unwrap()), values(slots[3].unwrap())) == ([None, -1.1], [None, -1.102])
    assert [len(call) for call in engine.scored] == [2]
    assert [len(call) for call in engine.calls] == [2]


def test_equal_prompts_are_scored_once_whatever_their_options() -> None:
    own, engine = route()
    asked = [
        {"prompt": "ab", "options": {"samples": 3, "temperature": 0.7}},
        {"prompt": "ab", "options": {"min_new_tokens": 5}},
    ]
    slots = pg.run(own, asked, {"prompt_logprobs": True})
    assert [len(call) for call in engine.scored] == [1]
    assert [values(one) for slot in slots for one in slot.unwrap().samples or (slot.unwrap(),)] == [
        [None, -1.098]
    ] * 4


def test_a_prompt_of_one_token_has_none_and_takes_no_call() -> None:
    own, engine = route()
    assert pg.run(own, [{"prompt": "a"}], READ)[0].unwrap().prompt_logprobs == (None,)
    assert (engine.calls, engine.scored) == ([], [])


def test_every_driver_gives_the_same(tmp_path: Path) -> None:
    own, _ = route()
    asked = [
        {"id": "a", "prompt": "ab"},
        {"id": "b", "prompt": "cd", "options": {"max_new_tokens": 0}},
        {"id": "c", "prompt": "ab"},
    ]
    options = {"prompt_logprobs": True}
    wanted = pg.run(own, asked, options)
    assert all(
        values(slot.unwrap())[0] is None and len(values(slot.unwrap())) == 2 for slot in wanted
    )
    assert asyncio.run(pg.arun(own, asked, options)) == wanted
    assert tuple(pg.imap(own, asked, options)) == wanted
    events = [*pg.stream(own, asked, options)]
    assert tuple(event.slot for event in events if isinstance(event, pg.Done)) == wanted
    assert (
        "".join(event.text for event in events if isinstance(event, pg.Delta) and event.index == 0)
        == "an answer"
    )
    for _ in range(2):
        with pg.job(own, asked, tmp_path / "job", options) as job:
            assert [*job] == [*wanted]


def test_what_an_engine_cannot_give_is_refused() -> None:
    own, engine = route(honours=pg.ENGINES["hf"] - {"prompt_logprobs"})
    error = pg.run(own, [{"prompt": "Hi"}], {"prompt_logprobs": True})[0].failure()
    assert (type(error), getattr(error, "option", "")) == (pg.UnsupportedOption, "prompt_logprobs")
    assert engine.calls == []
    error = pg.run(pg.route(_without_scores()), [{"prompt": "Hi"}], {"prompt_logprobs": True})[
        0
    ].failure()
    assert (type(error), getattr(error, "option", "")) == (pg.UnsupportedOption, "prompt_logprobs")


def test_a_prompt_with_images_is_refused() -> None:
    own, engine = route(honours=pg.ENGINES["vllm"])
    request = pg.VlmGenerationRequest(prompt="What?", images=[b"image"])
    slots = pg.run(own, [request, {"prompt": "Hi"}], {"prompt_logprobs": True})
    assert getattr(slots[0].failure(), "option", "") == "prompt_logprobs"
    assert pg.is_ok(slots[1])
    assert [len(call) for call in engine.calls] == [1]


def test_a_prompt_that_cannot_be_scored_is_not_answered() -> None:
    own, engine = route(
        fault=CallFailed(pg.BackendFailed("it died", backend="fake", scope="batch"))
    )
    assert (
        pg.run(own, [{"prompt": "Hi"}], {"prompt_logprobs": True})[0].failure().message == "it died"
    )
    assert engine.calls == []


def test_a_pipe_joined_by_hand_asks_for_them_and_one_whose_own_call_does_not_says_so() -> None:
    engine = FakeEngine("")
    asked = pg.stages.resolve(engine) >> pg.stages.render(engine) >> pg.stages.tokenize(engine)
    whole = asked >> pg.call(engine) >> pg.stages.decode(engine)
    assert (
        pg.run(whole, [{"prompt": "Hi"}], {"prompt_logprobs": True})[0].unwrap().raw.prompt_logprobs
        is not None
    )
    bare = (
        asked
        >> pg.each("own", lambda encoded: Success(Raw(encoded=encoded, token_ids=())))
        >> pg.stages.decode(engine)
    )
    error = pg.run(bare, [{"prompt": "Hi"}], {"prompt_logprobs": True})[0].failure()
    assert (getattr(error, "option", ""), "pg.call" in error.hint) == ("prompt_logprobs", True)


def test_a_chat_server_generates_at_least_one_token() -> None:
    pytest.importorskip("aiohttp")
    chat = pg.backends.openai_server("model", base_url="http://127.0.0.1:9")
    for options, name in (
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"prompt_logprobs": True}, "prompt_logprobs"),
    ):
        error = pg.run(chat, [{"prompt": "Hi"}], options)[0].failure()
        assert (type(error), getattr(error, "option", "")) == (pg.UnsupportedOption, name)


def test_the_stage_is_bound_to_another_engine() -> None:
    own, engine = route()
    other = pg.attach(own, pg.plugins.strip_prefix(["an "]))
    result = pg.run(other, [{"prompt": "Hi"}], {"prompt_logprobs": True})[0].unwrap()
    assert (result.text, values(result)) == ("answer", [None, -1.105])
    assert len(engine.scored) == 1


def test_they_go_to_files_and_come_back() -> None:
    from pipegen.io.jsonl import from_plain, to_plain

    slot = pg.run(route()[0], [{"id": "a", "prompt": "Hi"}], READ)[0]
    assert from_plain(to_plain(slot)) == slot
    assert "prompt_logprobs" not in to_plain(slot, brief=True)


def _without_scores() -> Any:
    class Plain:
        """The engine without the method that scores."""

        def __init__(self) -> None:
            self.engine = FakeEngine("")

        def __getattr__(self, name: str) -> Any:
            if name in ("score", "longest_scored", "resolve", "result"):
                raise AttributeError(name)
            return getattr(self.engine, name)

    return Plain()


class Late(FakeEngine):
    """An engine whose model cannot be read once it is `gone`."""

    gone = False

    def __getattribute__(self, name: str) -> Any:
        if name == "renderer" and self.gone:
            raise pg.CallFailed(pg.BackendFailed("no model here", backend="late"))
        return super().__getattribute__(name)


def test_a_thought_and_a_stream_of_a_model_that_cannot_be_read_fail() -> None:
    form = ThoughtForm(opens=(), closes=(), end_id=1, bridge=())
    encoded = Encoded(
        request=pg.TextGenerationRequest(prompt="A"),
        options=resolve(pg.GenerationOptions(max_thinking_tokens=3)),
        prompt=Prompt(token_ids=(65,), compact_token_ids=(65,), thought=form),
    )
    engine = Late("a")
    engine.gone = True
    assert drive(call(engine), (Success(encoded),))[0].failure().message == "no model here"
    (stage,) = decode(engine).steps
    follow = getattr(stage, "follow", None)
    assert follow is not None
    with pytest.raises(pg.CallFailed):
        follow(encoded)
