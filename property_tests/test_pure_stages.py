"""What an engine learns between two batches changes no stage; each fact of a model is read once;
records before a call can be pickled.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

from hypothesis import given, strategies as st

import pipegen as pg
from pipegen.records.results import Raw
from pipegen.stages import decode, stop, trim
from pipegen.testing.fake import FakeEngine, ToyRenderer
from pipegen.testing.strategies import requests
from pipegen.testing.toy import ToyTokenizer


class Learning(FakeEngine):
    """Each call, and each reading of what it can do, teaches it more."""

    read = 0

    def generate(self, inputs: Sequence[Any]) -> Any:
        self.learn()
        return super().generate(inputs)

    def learn(self) -> None:
        """Know less room, fewer options and other end tokens than before."""
        limit = (self.capabilities.context_length or 1000) // 2
        self.capabilities = pg.Capabilities(
            engine=self.name,
            honours=frozenset({"seed"}),
            context_length=max(1, limit),
            vocab_size=70,
        )
        self.eos_token_ids = (97,)
        self.bos_token = "b"
        self.image_placeholder = None


class Lost(FakeEngine):
    """Its model cannot be read."""

    def read_model(self) -> Any:
        raise pg.CallFailed(pg.BackendFailed("it is gone", backend="lost"))


BEFORE = ("resolve", "render", "tokenize", "fit")
ASKED = st.lists(requests(), min_size=1, max_size=4)


def before_the_call(engine: FakeEngine) -> Any:
    """The stages of the engine's route that come before its call."""
    route: Any = pg.route(engine)
    for name in [part.name for part in route.parts if part.name not in BEFORE]:
        route = route.remove(name)
    return route


@given(ASKED, ASKED, st.none() | st.integers(1, 40))
def test_what_an_engine_learns_changes_no_stage_before_its_call(
    first: list[Any], second: list[Any], limit: int | None
) -> None:
    engine = Learning("b", context_length=limit)
    stages, batch = before_the_call(engine), tuple(map(pg.Success, first))
    today = stages.apply(batch)
    pg.run(pg.route(engine), second)
    engine.learn()
    assert stages.apply(batch) == today
    assert before_the_call(engine).apply(batch) == today  # of the same engine, while that lives


@given(ASKED, st.none() | st.integers(1, 40))
def test_the_stages_are_those_of_an_engine_that_has_learnt_nothing(
    asked: list[Any], limit: int | None
) -> None:
    engine = Learning("b", context_length=limit)
    stages = before_the_call(engine)
    first = stages.apply(tuple(map(pg.Success, asked)))
    engine.learn()
    fresh = before_the_call(Learning("b", context_length=limit))
    assert fresh.apply(tuple(map(pg.Success, asked))) == first


ANSWERS = st.lists(st.integers(32, 126) | st.integers(256, 258), max_size=12)
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


def raw_of(engine: FakeEngine, number: int, token_ids: Sequence[int]) -> Any:
    """What a call answered with these ids, to a prompt, a question with tools or a stop."""
    asked: list[dict[str, Any]] = [
        {"prompt": "a"},
        {"messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS},
        {"prompt": "a", "options": {"stop": ["b"], "logprobs": False, "max_new_tokens": 5}},
    ]
    ready = before_the_call(engine).apply((pg.request_from(asked[number % 3]),))[0]
    return ready.map(lambda encoded: Raw(encoded=encoded, token_ids=tuple(token_ids)))


@given(st.lists(ANSWERS, min_size=1, max_size=4), ASKED)
def test_what_an_engine_learns_changes_no_stage_after_its_call(
    answers: list[list[int]], others: list[Any]
) -> None:
    engine = Learning("b")
    whole: Any = pg.route(engine)
    batch = tuple(raw_of(engine, number, ids) for number, ids in enumerate(answers))
    stages = decode(engine) >> stop(engine) >> trim(engine)
    assert all(map(pg.is_ok, batch))
    today = stages.apply(batch)
    pg.run(whole, others)
    engine.learn()
    engine.tokenizer = ToyTokenizer(merges=("bb",))
    engine.renderer = ToyRenderer(thinking=False)
    assert stages.apply(batch) == today
    assert (decode(engine) >> stop(engine) >> trim(engine)).apply(batch) == today


def test_a_stage_after_the_call_needs_a_model_that_can_be_read() -> None:
    batch = (raw_of(FakeEngine("b"), 0, [97]), pg.Failure(pg.Timeout("slow")))
    unread, slow = decode(Lost("b")).apply(batch)
    assert (unread.failure().message, slow.failure().message) == ("it is gone", "slow")


@given(ASKED, st.none() | st.integers(1, 40))
def test_rows_before_a_call_pickle(asked: list[Any], limit: int | None) -> None:
    rows = before_the_call(FakeEngine("b", context_length=limit)).apply(
        tuple(map(pg.Success, asked))
    )
    values = [row.unwrap() for row in rows if pg.is_ok(row)]
    assert pickle.loads(pickle.dumps(values)) == values


def test_an_engine_is_read_once_for_all_its_stages() -> None:
    reads: list[str] = []

    class Counted(FakeEngine):
        longest_scored = None

        def __getattribute__(self, name: str) -> Any:
            if name in ("capabilities", "tokenizer", "renderer", "eos_token_ids", "bos_token"):
                reads.append(name)
            return super().__getattribute__(name)

    engine = Counted("b")
    reads.clear()
    stages = before_the_call(engine)
    assert not reads
    batch = tuple(pg.Success(pg.TextGenerationRequest(prompt=text)) for text in ("a", "b"))
    for _ in range(3):
        assert all(map(pg.is_ok, stages.apply(batch)))
    assert sorted(reads) == sorted(set(reads))


def test_a_model_that_cannot_be_read_is_read_again_by_the_next_batch() -> None:
    class Late(FakeEngine):
        there = False

        def __getattribute__(self, name: str) -> Any:
            if name == "renderer" and not self.there:
                raise pg.CallFailed(pg.BackendFailed("not yet", backend="late"))
            return super().__getattribute__(name)

    engine = Late("b")
    batch = (pg.Success(pg.TextGenerationRequest(prompt="a")),)
    stages = before_the_call(engine)
    assert stages.apply(batch)[0].failure().message == "not yet"
    engine.there = True
    assert pg.is_ok(stages.apply(batch)[0])
