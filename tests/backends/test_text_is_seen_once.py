"""Plugins see each piece of a row's text once, whoever runs it: what the engine's row decoder found
is not looked for again.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

import pipegen as pg
from pipegen.engines.plugin import Plugin
from pipegen.testing.fake import FakeEngine

pytestmark = pytest.mark.slow

pytest.importorskip("torch")


def counting(seen: list[str], *, enough: int = 10**6) -> Plugin:
    def feed(state: int, text: str) -> tuple[int, int | None]:
        seen.append(text)
        return state + len(text), len(text) if state + len(text) >= enough else None

    return Plugin(name="counting", start=lambda: 0, feed=feed)


def fake() -> pg.Route:
    return pg.route(FakeEngine("Once there was a STOP sign<|im_end|>"))


def hf() -> pg.Route:
    return pg.backends.hf("embedded")


OPTIONS = pg.GenerationOptions(max_new_tokens=24, stop=pg.StopOptions(stop=("STOP",)))


@pytest.mark.parametrize("make", [fake, hf])
@pytest.mark.parametrize("enough", [10**6, 6])
def test_a_run_shows_the_text_once(make: Callable[[], pg.Route], enough: int) -> None:
    seen: list[str] = []
    with pg.attach(make(), counting(seen, enough=enough)) as route:
        result = pg.run(route, [{"prompt": "Hi"}], OPTIONS)[0].unwrap()
    assert result.text == "".join(seen)[: len(result.text)]
    assert len(seen) <= result.completion_tokens + 1


def test_a_stream_shows_the_text_once() -> None:
    seen: list[str] = []
    with pg.attach(hf(), counting(seen)) as route:
        *deltas, done = pg.stream(route, [{"prompt": "Hi"}], OPTIONS)
    assert isinstance(done, pg.Done)
    assert (
        "".join(delta.text for delta in deltas if isinstance(delta, pg.Delta))
        == "".join(seen)
        == done.slot.unwrap().text
    )
    assert len(seen) <= done.slot.unwrap().completion_tokens + 1
