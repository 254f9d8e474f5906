"""How a flow and a job end early: what is in flight has some time, and no more."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from support.stepwise import Stepwise, echo

import pipegen as pg
from pipegen.drivers.drive import Drive
from pipegen.drivers.drive_parts import NoRequest, ReadInput
from pipegen.testing.fake import FakeEngine

PROMPTS = ["1 a", "9 b", "3 c", "2 d", "1 e", "1 f"]
"""Each begins with the number of steps that its row takes."""


def texts(engine: FakeEngine) -> list[str]:
    return [str(encoded.request.prompt) for call in engine.calls for encoded in call]


def flow_of(engine: Stepwise, ended: list[str]) -> Drive[str]:
    waiting = iter(PROMPTS)

    def take() -> tuple[str, Any] | NoRequest:
        prompt = next(waiting, None)
        return NoRequest.MORE if prompt is None else (prompt, {"prompt": prompt})

    return Drive(
        pg.route(engine),
        ReadInput(take),
        ordered=False,
        finished=lambda key, slot: ended.append(key),
        clock=lambda: engine.now,
    )


@pytest.mark.parametrize("side_by_side", [3, 0])
@pytest.mark.parametrize(("seconds", "rows", "steps"), [(0, 1, 1), (2, 2, 3), (30, 3, 9)])
def test_a_flow_that_is_drained_takes_nothing_more_and_ends_in_time(
    side_by_side: int, seconds: float, rows: int, steps: int
) -> None:
    engine, ended = Stepwise(side_by_side=side_by_side), list[str]()
    flow = flow_of(engine, ended)
    assert [key for key, _ in flow.round()] == ["1 a"]
    flow.drain(seconds)
    assert ended == ["1 a", "3 c", "9 b"][:rows]
    assert engine.now == steps
    flow.close()
    assert engine.left == 3 - rows


def test_drained_again_a_flow_has_no_more_time_than_it_had() -> None:
    engine, ended = Stepwise(), list[str]()
    flow = flow_of(engine, ended)
    list(flow.round())
    flow.drain(1)
    flow.drain(5)
    assert (ended, engine.now) == (["1 a"], 2)
    flow.close()


def test_nothing_in_flight_takes_no_time() -> None:
    flow = flow_of(Stepwise(), [])
    flow.drain(60)
    assert flow.exhausted


def test_an_engine_of_whole_calls_is_not_called_again() -> None:
    engine = FakeEngine(echo)
    first = pg.route(engine)
    twice = (
        first >> pg.pure("again", lambda result: pg.GenerationRequest(prompt=result.text)) >> first
    )
    ended: list[str] = []
    waiting = iter(["a", "b"])

    def take() -> tuple[str, Any] | NoRequest:
        prompt = next(waiting, None)
        return NoRequest.MORE if prompt is None else (prompt, {"prompt": prompt})

    flow = Drive(twice, ReadInput(take), finished=lambda key, slot: ended.append(key))
    list(flow.round())
    assert len(engine.calls) == 1
    flow.drain(60)
    assert (len(engine.calls), ended) == (1, [])
    flow.close()


def test_a_bug_of_an_engine_raises_while_a_flow_is_drained() -> None:
    def broken() -> None:
        if engine.now > 1:
            raise ZeroDivisionError

    engine = Stepwise(before_step=broken)
    waiting = iter(PROMPTS)
    flow: Drive[str] = Drive(
        pg.route(engine),
        ReadInput(lambda: (prompt := next(waiting), {"prompt": prompt})),
        isolate_bugs=True,
    )
    list(flow.round())
    with pytest.raises(ZeroDivisionError):
        flow.drain(60)
    assert len(engine.calls) == 1
    flow.close()


def job(engine: FakeEngine, folder: Path, **more: Any) -> pg.Job[Any]:
    return pg.job(pg.route(engine), [{"prompt": prompt} for prompt in PROMPTS], folder, **more)


@pytest.mark.parametrize(("grace", "kept"), [(60, ["1 a", "3 c", "9 b"]), (0, ["1 a"])])
def test_a_job_that_is_closed_keeps_what_ends_in_its_grace(
    tmp_path: Path, grace: float, kept: list[str]
) -> None:
    engine = Stepwise()
    with job(engine, tmp_path, grace=grace) as running:
        assert next(running).unwrap().text == "re: 1 a"
    assert texts(engine) == kept
    assert not running.stopped
    with job(engine, tmp_path) as running:
        assert [slot.unwrap().text for slot in running] == [f"re: {prompt}" for prompt in PROMPTS]
    assert (running.before, running.reused) == (len(kept), len(kept))


@pytest.mark.parametrize("side_by_side", [3, 0])
@pytest.mark.parametrize("thread", [True, False])
def test_a_job_stops_from_anywhere(tmp_path: Path, side_by_side: int, thread: bool) -> None:
    begun: list[float] = []

    def stop() -> None:
        if engine.now == 1:
            running.stop(begun=lambda: begun.append(engine.now))

    def before_step() -> None:
        if thread:
            other = threading.Thread(target=stop)
            other.start()
            other.join()
        else:
            stop()

    engine = Stepwise(side_by_side=side_by_side, before_step=before_step)
    with job(engine, tmp_path, grace=60) as running:
        assert [slot.unwrap().text for slot in running] == ["re: 1 a", "re: 9 b", "re: 3 c"]
    assert running.stopped
    assert begun == [1]
    assert texts(engine) == ["1 a", "3 c", "9 b"]


def test_a_job_that_stops_again_with_less_time_ends_at_once(tmp_path: Path) -> None:
    engine = Stepwise()
    with job(engine, tmp_path, grace=60) as running:
        next(running)
        running.stop()
        running.stop(0)
        assert list(running) == []
    assert (running.stopped, engine.now, texts(engine)) == (True, 1, ["1 a"])


def test_a_job_whose_rows_have_all_ended_is_not_stopped(tmp_path: Path) -> None:
    with job(Stepwise(), tmp_path) as running:
        for _ in PROMPTS:
            next(running)
        running.stop()
        assert list(running) == []
    assert not running.stopped


@pytest.mark.parametrize("grace", [-1, float("inf"), float("nan"), True, "5"])
def test_a_grace_that_is_none_is_refused_before_anything_is_written(
    tmp_path: Path, grace: Any
) -> None:
    with pytest.raises(ValueError, match="grace takes seconds, 0 or more"):
        job(Stepwise(), tmp_path / "job", grace=grace)
    assert not (tmp_path / "job").exists()
