"""Progress within a batch."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from typing import Any

import pytest
from returns.result import Success

import pipegen as pg
from pipegen.core.interpreter import Row, advance
from pipegen.core.pipe import identity
from pipegen.testing.fake import FakeEngine


class Streaming(FakeEngine):
    """It costs nothing to be told of its tokens, as of engines on checkpoints."""

    tells_tokens = True

    def generate(self, inputs: Sequence[Any]) -> Any:
        raise AssertionError("its stream was to be read")


def told(
    engine: FakeEngine,
    requests: Sequence[Any],
    *,
    every: float = 0.0,
    awaits: bool = False,
    **options: Any,
) -> tuple[list[pg.Progress], Any]:
    seen: list[pg.Progress] = []
    route = pg.watched(pg.route(engine), seen.append, every=every)
    said = pg.GenerationOptions(**options)
    return seen, (
        asyncio.run(pg.arun(route, requests, said)) if awaits else pg.run(route, requests, said)
    )


REQUESTS = [{"prompt": "a"}, {"messages": []}, {"prompt": "b"}]


@pytest.mark.parametrize("awaits", [False, True])
def test_an_engine_that_streams_tells_of_every_token_and_row(awaits: bool) -> None:
    seen, slots = told(Streaming("abc"), REQUESTS, awaits=awaits)
    assert slots == pg.run(pg.route(FakeEngine("abc")), REQUESTS)
    assert [progress[1:] for progress in seen] == [(2, 0, tokens) for tokens in range(7)] + [
        (2, 1, 6),
        (2, 2, 6),
    ]


def test_an_engine_that_does_not_tells_of_the_start_and_the_end() -> None:
    seen, _ = told(FakeEngine("abc"), REQUESTS)
    assert seen == [("fake", 2, 0, 0), ("fake", 2, 2, 6)]


def test_it_is_told_no_more_often_than_wanted() -> None:
    seen, _ = told(Streaming("abc" * 50), REQUESTS, every=3600)
    assert seen == [("fake", 2, 0, 0), ("fake", 2, 0, 1), ("fake", 2, 2, 300)]


def test_samples_are_rows() -> None:
    seen, _ = told(FakeEngine("abc"), REQUESTS[:1], samples=3)
    assert seen[-1] == ("fake", 3, 3, 9)


def test_streams_composed_pipes_and_owned_engines_are_as_without_it() -> None:
    engine = Streaming("abc")
    plain = pg.route(engine)
    with pg.watched(plain >> identity(), lambda progress: None) as pipe:
        assert pipe.name == plain.name
        assert list(pg.stream(pipe, REQUESTS)) == list(pg.stream(plain, REQUESTS))
    assert engine.closed == 1


def test_a_fallback_tells_of_both_calls() -> None:
    refusing = FakeEngine(lambda encoded: pg.Timeout("slow"), name="first")
    seen: list[pg.Progress] = []
    both = pg.fallback(
        pg.route(refusing), pg.route(FakeEngine("b", name="second")), when=pg.Timeout
    )
    pg.run(pg.watched(both, seen.append), REQUESTS)
    assert [(progress.engine, progress.done) for progress in seen] == [
        ("first", 0),
        ("first", 2),
        ("second", 0),
        ("second", 2),
    ]


def test_what_the_listener_raises_comes_through() -> None:
    with pytest.raises(ZeroDivisionError):
        pg.run(pg.watched(pg.route(FakeEngine("a")), lambda progress: 1 // 0), REQUESTS)


def test_a_watched_backend_can_be_copied() -> None:
    seen: list[Any] = []
    engine = FakeEngine("a")
    pipe = pg.watched(pg.route(engine), seen.append)
    ((_, wanted),) = advance(pipe, [Row(0, Success(pg.TextGenerationRequest(prompt="a")))]).calls
    assert copy.copy(wanted.backend).name == "fake"
