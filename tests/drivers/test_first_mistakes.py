"""What people write first, and get wrong: the message has what to write."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path
from typing import Any

import pytest

import pipegen as pg
from pipegen.testing.fake import FakeEngine

ASKED: Any = [{"prompt": "Hi"}]


@pytest.fixture
def route() -> Any:
    return pg.route(FakeEngine("Hello"))


@pytest.mark.parametrize(
    "call", [pg.run, pg.imap, pg.imap_keyed, pg.stream, pg.arun, pg.aimap, pg.aimap_keyed, pg.astream]
)  # fmt: skip
def test_an_option_as_a_keyword_is_told_where_it_goes(call: Any, route: Any) -> None:
    for name in ("temperature", "max_new_tokens", "stop"):
        with pytest.raises(TypeError, match=rf"options go into one mapping.*options={{'{name}'"):
            call(route, ASKED, **{name: 1})
    with pytest.raises(TypeError, match="unexpected keyword argument 'batch_size'"):
        call(route, ASKED, batch_size=4)


@pytest.mark.parametrize("call", [pg.job, pg.job_keyed, pg.score, pg.choose])
def test_jobs_and_scores_say_so_too(call: Any, route: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"options go into one mapping.*options={'temperature'"):
        call(route, ASKED, tmp_path, temperature=1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'batch_size'"):
        call(route, ASKED, tmp_path, batch_size=4)
    assert list(tmp_path.iterdir()) == []


def test_the_functions_work_and_show_as_before(route: Any) -> None:
    import inspect

    assert pg.run(route, ASKED, options={"max_new_tokens": 2})[0].unwrap().text == "He"
    assert asyncio.run(pg.arun(route, ASKED))[0].unwrap().text == "Hello"
    assert list(inspect.signature(pg.run).parameters)[:3] == ["route", "requests", "options"]


def test_a_field_of_a_result_asked_of_its_slot_is_told_unwrap(route: Any) -> None:
    (slot,) = pg.run(route, ASKED)
    for name in ("text", "then", "rollout", "transcript"):
        with pytest.raises(AttributeError, match=rf"slot\.unwrap\(\)\.{name}$"):
            getattr(slot, name)


def test_a_failed_slot_is_told_how_to_find_out(route: Any) -> None:
    (slot,) = pg.run(route, [{"prompt": 3}])
    with pytest.raises(AttributeError, match=r"this one failed \(InvalidRequest: .*slot\.failure"):
        _ = slot.text


def test_a_slot_is_otherwise_as_it_was(route: Any) -> None:
    (slot,) = pg.run(route, ASKED)
    with pytest.raises(AttributeError, match="'Success' object has no attribute 'nothing'") as one:
        _ = slot.nothing
    assert (one.value.name, one.value.obj) == ("nothing", slot)
    assert not hasattr(slot, "nothing")
    assert pickle.loads(pickle.dumps(slot)) == slot


@pytest.mark.parametrize("name", ["contnet", "conten", "Content", "contents", "text"])
@pytest.mark.parametrize("role", ["user", "assistant"])
def test_a_misspelt_content_is_told(name: str, role: str, route: Any) -> None:
    messages = [{"role": role, name: "Hi"}, {"role": "user", "content": "Go on"}]
    error = pg.run(route, [{"messages": messages}])[0].failure()
    assert error.message == f"request: messages[0] has no content, but {name!r}: name it content"


def test_a_misspelt_role_is_told(route: Any) -> None:
    error = pg.run(route, [{"messages": [{"rol": "user", "content": "Hi"}]}])[0].failure()
    assert error.message.endswith("not None; the message has 'rol'")


def test_an_answer_without_words_is_one_still(route: Any) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": {}}}
    for answer in ({"tool_calls": [call], "context": "mine"}, {"reasoning_content": "Hm."}):
        messages = [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": None, **answer},
            {"role": "user", "content": "Go on"},
        ]
        assert pg.is_ok(pg.run(route, [{"messages": messages}])[0])
