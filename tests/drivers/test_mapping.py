"""Windows that are prepared while the engine works: the same slots, in order, one call at a time, and no more requests held than said."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import pipegen as pg
from pipegen.engines.extras import MissingExtra
from pipegen.testing.fake import FakeEngine

AHEAD = pytest.mark.parametrize("ahead", [0, 1, 3])


def asked(count: int, taken: list[int] | None = None) -> Iterator[dict[str, Any]]:
    for n in range(count):
        if taken is not None:
            taken.append(n)
        yield {"id": str(n), "prompt": f"{n}"} if n % 3 else {"id": str(n), "messages": []}


async def collected(route: Any, requests: Any, **how: Any) -> list[Any]:
    return [slot async for slot in pg.aimap(route, requests, **how)]


@AHEAD
@pytest.mark.parametrize("count", [0, 1, 4, 11])
def test_the_slots_are_the_same_however_far_ahead(ahead: int, count: int) -> None:
    whole = list(pg.run(pg.route(FakeEngine("a b")), asked(count)))
    assert list(pg.imap(pg.route(FakeEngine("a b")), asked(count), window=2, ahead=ahead)) == whole
    assert asyncio.run(collected(pg.route(FakeEngine("a b")), asked(count), window=2, ahead=ahead)) == whole


@AHEAD
def test_no_more_requests_are_taken_than_said(ahead: int) -> None:
    taken: list[int] = []
    slots = pg.imap(pg.route(FakeEngine("a")), asked(100, taken), window=4, ahead=ahead)
    for done in (1, 2):
        for _ in range(4):
            next(slots)
        assert len(taken) == 4 * (done + ahead)
    slots.close()  # type: ignore[attr-defined]


class Watched(FakeEngine):
    """Counts the calls that run at one time, and waits in its first call until the second window is being prepared."""

    prepared: threading.Event
    running = 0

    def generate(self, inputs: Sequence[Any]) -> Any:
        self.running += 1
        assert self.running == 1
        if len(self.calls) == 0:
            assert self.prepared.wait(60)
        made = super().generate(inputs)
        self.running -= 1
        return made

    def prepare_image(self, source: Any, options: Any, index: int) -> Any:
        if source.data == b"second":
            self.prepared.set()
        return super().prepare_image(source, options, index)


def watched() -> Watched:
    engine = Watched("a")
    engine.prepared = threading.Event()
    return engine


IMAGES = [pg.VlmGenerationRequest(prompt="x", images=[data]) for data in (b"first", b"second", b"third", b"fourth")]


def test_images_of_the_next_window_are_prepared_while_the_engine_works() -> None:
    engine = watched()
    assert all(map(pg.is_ok, pg.imap(pg.route(engine), IMAGES, window=1, ahead=1)))
    assert len(engine.calls) == 4
    engine = watched()
    assert all(map(pg.is_ok, asyncio.run(collected(pg.route(engine), IMAGES, window=1, ahead=1))))
    assert len(engine.calls) == 4


def test_a_bug_in_a_later_window_raises_when_its_turn_comes() -> None:
    class Broken(FakeEngine):
        def prepare_image(self, source: Any, options: Any, index: int) -> Any:
            if source.data == b"third":
                raise KeyError("bug")
            return super().prepare_image(source, options, index)

    slots = pg.imap(pg.route(Broken("a")), IMAGES, window=1, ahead=2)
    assert [pg.is_ok(next(slots)) for _ in range(2)] == [True, True]
    with pytest.raises(KeyError, match="bug"):
        next(slots)


def test_whoever_stops_early_leaves_no_thread_behind() -> None:
    before = set(threading.enumerate())
    slots = pg.imap(pg.route(FakeEngine("a")), asked(100), window=2, ahead=2)
    next(slots)
    slots.close()  # type: ignore[attr-defined]
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("number", [True, 2.5, "2", None])
@pytest.mark.parametrize(("name", "least"), [("window", 1), ("ahead", 0)])
def test_both_take_whole_numbers_only(name: str, least: int, number: Any) -> None:
    said: dict[str, Any] = {name: number}
    with pytest.raises(ValueError, match=f"{name} takes a whole number of at least {least}, not {number!r}"):
        next(pg.imap(pg.route(FakeEngine("a")), asked(2), **said))
    with pytest.raises(ValueError, match=f"{name} takes a whole number of at least {least}, not {number!r}"):
        asyncio.run(collected(pg.route(FakeEngine("a")), asked(2), **said))


def test_neither_takes_a_number_that_makes_no_sense() -> None:
    with pytest.raises(ValueError, match="ahead takes a whole number of at least 0, not -1"):
        next(pg.imap(pg.route(FakeEngine("a")), asked(2), ahead=-1))
    with pytest.raises(ValueError, match="window takes a whole number of at least 1, not 0"):
        asyncio.run(collected(pg.route(FakeEngine("a")), asked(2), window=0))


def buggy(requests: list[str], **how: Any) -> list[str]:
    """The texts of an `imap` over an engine that has a bug for the word `bug`, and the types of its errors."""

    def script(encoded: Any) -> str:
        if "bug" in encoded.request.prompt:
            raise KeyError("a bug")
        return "fine"

    slots = pg.imap(pg.route(FakeEngine(script)), ({"prompt": request} for request in requests), **how)
    return [slot.unwrap().text if pg.is_ok(slot) else type(slot.failure()).__name__ for slot in slots]


def test_a_bug_raises_unless_it_is_isolated() -> None:
    with pytest.raises(KeyError):
        buggy(["a", "bug", "c"])


@pytest.mark.parametrize("ahead", [0, 2])
def test_an_isolated_bug_fails_its_own_request(ahead: int, caplog: pytest.LogCaptureFixture) -> None:
    assert buggy(["a", "bug", "c", "d", "bug"], isolate_bugs=True, ahead=ahead, window=3) == ["fine", "InternalError", "fine", "fine", "InternalError"]
    assert len(caplog.records) == 2  # one traceback for each, not one for each half


def test_a_missing_package_is_no_bug_of_a_request() -> None:
    def missing(encoded: Any) -> str:
        raise MissingExtra("pip install it")

    slots = pg.imap(pg.route(FakeEngine(missing)), [{"prompt": "a"}], isolate_bugs=True)
    with pytest.raises(MissingExtra):
        list(slots)
