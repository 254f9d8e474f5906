"""Few short requests to a server are worked on within the event loop of the caller, and any others
beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from returns.result import Success
from support.served import route_to

import pipegen as pg
from pipegen.drivers.drive import Drive
from pipegen.drivers.light_work import FEW, SHORT
from pipegen.testing.faulty import FaultyServer

pytest.importorskip("aiohttp")

HI = {"prompt": "Hi"}
IMAGE = {"type": "image", "image": b"any bytes"}


def unchanged(route: pg.Route) -> pg.Route:
    return route


def with_own_stage(route: pg.Route) -> pg.Route:
    return route.insert(pg.each("mine", Success), after="trim")


def with_own_prompt(route: pg.Route) -> pg.Route:
    def write(messages: Sequence[Any]) -> str:
        return "".join(message["content"] for message in messages)

    return route.replace("render", pg.stages.render(route.engine, write))


def with_nest(route: pg.Route) -> pg.Route:
    return pg.fallback(route, route, when=lambda error: False)


def with_plugin(route: pg.Route) -> pg.Route:
    return pg.attach(route, pg.plugins.balanced_json())


def threads_of(
    edit: Callable[[pg.Route], pg.Route],
    requests: Sequence[Any],
    monkeypatch: pytest.MonkeyPatch,
    *,
    warm: bool = True,
) -> set[bool]:
    """Whether the rounds were within the thread of the event loop, once its stages have run."""
    within: list[bool] = []
    round_of, here = Drive.round, threading.get_ident()

    def seen(self: Any, **named: Any) -> Any:
        if named.get("goes_on", True):  # others only look at what has come
            within.append(threading.get_ident() == here)
        return round_of(self, **named)

    async def asked(route: pg.Route) -> None:
        if warm:
            await pg.arun(route, [HI])
            within.clear()
        assert len(await pg.arun(route, requests, {"max_new_tokens": 4})) == len(requests)

    monkeypatch.setattr(Drive, "round", seen)
    with FaultyServer() as server, contextlib.closing(route_to(server, timeout=60.0)) as route:
        asyncio.run(asked(edit(route)))
    return {*within}


@pytest.mark.parametrize(
    "requests",
    [
        [HI],
        [HI] * FEW,
        [{"prompt": "a" * SHORT}],
        [{"prompt_token_ids": [70, 71]}],
        [{"messages": [{"role": "user", "content": "Hi"}]}],
        [{"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]}],
    ],
)
def test_few_short_requests_are_worked_on_within_the_event_loop(
    requests: Sequence[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert threads_of(unchanged, requests, monkeypatch) == {True}


@pytest.mark.parametrize(
    ("edit", "requests"),
    [
        (unchanged, [HI] * (FEW + 1)),
        (unchanged, [{"prompt": "a" * (SHORT + 1)}]),
        (unchanged, [{"messages": [{"role": "user", "content": [IMAGE]}]}]),
        (with_own_stage, [HI]),
        (with_own_prompt, [HI]),
        (with_nest, [HI]),
        (with_plugin, [HI]),
    ],
)
def test_others_are_worked_on_beside_it(
    edit: Callable[[pg.Route], pg.Route],
    requests: Sequence[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert threads_of(edit, requests, monkeypatch) == {False}


def test_a_model_is_read_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    assert threads_of(unchanged, [HI], monkeypatch, warm=False) == {False}
