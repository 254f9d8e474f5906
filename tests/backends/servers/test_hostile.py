"""Servers that do not end, do not answer, or answer in other shapes: a row has one deadline,
bounded memory, and fails alone, with a typed error.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from support import served

import pipegen as pg
from pipegen.backends.http.access import access_to
from pipegen.testing.faulty import FaultyServer
from pipegen.testing.hostile import COMPLETE, ENDLESS, SHAPES

pytest.importorskip("aiohttp")

OPTIONS = pg.GenerationOptions(max_new_tokens=64)
ROUTES = ("vllm", "sglang", "chat", "vllm chat")


def route_to(server: FaultyServer, kind: str, **settings: Any) -> pg.Route:
    if kind in ("vllm", "sglang"):
        return served.route_to(server, kind, **settings)
    dialect: Any = "vllm" if kind == "vllm chat" else "plain"
    return pg.backends.openai_server("toy", base_url=server.url, dialect=dialect, **settings)


def streamed(route: pg.Route, prompts: list[dict[str, str]]) -> list[Any]:
    """The slots of a stream."""
    done = {
        event.index: event.slot
        for event in pg.stream(route, prompts, OPTIONS)
        if not isinstance(event, pg.Delta)
    }
    return [done[number] for number in range(len(prompts))]


def asked(route: pg.Route, way: str, count: int = 1) -> list[Any]:
    prompts = [{"prompt": f"request {number}"} for number in range(count)]
    return streamed(route, prompts) if way == "stream" else list(pg.run(route, prompts, OPTIONS))


@pytest.mark.parametrize("way", ["whole", "stream"])
@pytest.mark.parametrize("kind", ROUTES)
@pytest.mark.parametrize("fault", COMPLETE)
def test_an_answer_that_is_complete_counts_however_its_connection_ends(
    fault: str, kind: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipegen.backends.servers.sending.LAST_WORDS", 0.05)
    with (
        FaultyServer(share=1.0, kinds=(fault,)) as server,
        route_to(server, kind, timeout=0.5 if fault == "open" else 60.0, retries=0) as route,
    ):
        (slot,) = asked(route, way)
    assert slot.unwrap().text == "request 0"[::-1]
    assert slot.unwrap().finish is pg.Finish.EOS


@pytest.mark.parametrize("way", ["whole", "stream"])
@pytest.mark.parametrize("kind", ROUTES)
def test_signs_of_life_move_no_deadline(kind: str, way: str) -> None:
    with (
        FaultyServer(share=1.0, kinds=("keepalive",)) as server,
        route_to(server, kind, timeout=0.3) as route,
    ):
        (slot,) = asked(route, way)
    assert isinstance(slot.failure(), pg.Timeout)
    assert "0.3 s for a request (timeout)" in slot.failure().message
    assert sum(server.asked.values()) == 1


@pytest.mark.parametrize("way", ["whole", "stream"])
@pytest.mark.parametrize("kind", ROUTES)
@pytest.mark.parametrize("fault", [fault for fault in ENDLESS if fault != "keepalive"])
def test_what_has_no_end_is_not_read_without_end(
    fault: str, kind: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipegen.backends.http.client.BASE", 2**18)
    # its events hold all tokens so far
    says_nothing_new = (fault, kind, way) == ("flood", "sglang", "stream")
    with (
        FaultyServer(share=1.0, kinds=(fault,)) as server,
        route_to(server, kind, timeout=0.5 if says_nothing_new else 60.0, retries=0) as route,
    ):
        (slot,) = asked(route, way)
    if says_nothing_new:
        assert isinstance(slot.failure(), pg.Timeout)
    elif (fault, kind, way) == ("flood", "vllm", "stream"):  # pipegen counts the tokens itself
        assert slot.unwrap().finish is pg.Finish.LENGTH
    else:
        assert isinstance(slot.failure(), pg.MalformedResponse)
        assert "more than" in slot.failure().message


@pytest.mark.parametrize("way", ["whole", "stream"])
@pytest.mark.parametrize("kind", ROUTES)
@pytest.mark.parametrize("shape", SHAPES)
def test_an_answer_of_another_shape_fails_its_row_alone(shape: str, kind: str, way: str) -> None:
    with (
        FaultyServer(share=0.5, seed=3, kinds=(shape,)) as server,
        route_to(server, kind, timeout=60.0, retries=0) as route,
    ):
        slots = asked(route, way, 8)
    good = [number for number, slot in enumerate(slots) if pg.is_ok(slot)]
    assert 0 < len(good) < 8
    assert all(slots[number].unwrap().text == f"request {number}"[::-1] for number in good)
    assert all(
        isinstance(slot.failure(), pg.MalformedResponse) for slot in slots if not pg.is_ok(slot)
    )


def test_whatever_the_reading_of_an_answer_raises_is_an_incident_of_its_row(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from pipegen.backends.servers import choices

    def surprised(*_: Any) -> Any:
        raise ZeroDivisionError("nobody thought of this")

    with (
        FaultyServer() as server,
        route_to(server, "chat", retries=0) as route,
        caplog.at_level(logging.ERROR, "pipegen"),
    ):
        monkeypatch.setattr(choices, "usage_of", surprised)
        for way in ("whole", "stream"):
            error = asked(route, way)[0].failure()
            assert isinstance(error, pg.MalformedResponse)
            assert "ZeroDivisionError: nobody thought of this" in error.message
            assert error.incident
            assert error.incident in caplog.text
    assert "Traceback" in caplog.text


# Patience


def test_a_wait_that_no_row_can_sit_out_fails_its_row_and_holds_up_no_other() -> None:
    with (
        FaultyServer(share=0.3, seed=5, kinds=("patience",)) as server,
        route_to(server, "vllm", max_in_flight=2) as route,
    ):
        slots = asked(route, "whole", 20)
    lost = [slot.failure() for slot in slots if not pg.is_ok(slot)]
    assert [type(error) for error in lost] == [pg.RateLimited] * server.failed["patience"]
    assert {error.retry_after for error in lost} == {1e9}
    assert 0 < len(lost) < 20


@pytest.mark.parametrize(
    ("said", "closed"),
    [
        *(("1e9", 0.0), ("86400", 0.0), ("Fri, 31 Dec 9999 23:59:59 GMT", 0.0), ("599", 60.0)),
        *(("2", 2.0), ("nan", 0.0)),
    ],
)
def test_one_answer_keeps_the_others_from_the_server_for_a_tenth_of_their_time_at_most(
    said: str, closed: float
) -> None:
    from pipegen.backends.http.transport import Transport
    from pipegen.backends.servers.wire import WireReply
    from pipegen.engines.settings import ServerSettings

    async def work() -> None:
        now = asyncio.get_running_loop().time()
        transport = Transport(
            access_to("http://h", default="", variable="NO_SUCH_KEY"), ServerSettings()
        )
        gate = (await transport.here()).gate
        transport._note(gate, WireReply(status=429, headers={"retry-after": said}), now)
        assert max(0.0, gate._closed_until - now) == pytest.approx(closed, abs=0.5)
        transport.close()

    asyncio.run(work())


def test_there_is_a_deadline_where_none_is_set() -> None:
    from pipegen.backends.http.transport import Transport
    from pipegen.engines.settings import ServerSettings

    async def work() -> None:
        transport = Transport(
            access_to("http://h", default="", variable="NO_SUCH_KEY"), ServerSettings()
        )
        now = asyncio.get_running_loop().time()
        assert 590 < transport.row().ends - now < 610
        assert transport.row(now + 5).ends == now + 5

    asyncio.run(work())


# Counts


def counted(finish: str, made: int, **options: Any) -> Any:
    from pipegen.backends.servers.chat_engine import ChatRow, result_of
    from pipegen.backends.servers.wire import Completion
    from pipegen.records.options import resolve
    from pipegen.records.results import ResolvedRequest

    row = ChatRow(
        ResolvedRequest(
            request=pg.TextGenerationRequest(prompt="Hi"),
            options=resolve(pg.GenerationOptions(max_new_tokens=8, **options)),
        )
    )
    row.take(Completion(text="ab", finish=finish, usage={"completion_tokens": made}))
    return lambda route: row.slot().bind(lambda said: result_of(said, route, ()))


@pytest.mark.parametrize("finish", ["length", "stop"])
def test_a_chat_answer_shorter_than_asked_is_malformed(finish: str) -> None:
    error = counted(finish, 3, min_new_tokens=5)("vllm_chat").failure()
    assert isinstance(error, pg.MalformedResponse)
    assert "ended after 3 tokens, and at least 5 were asked" in error.message


def test_a_chat_answer_longer_than_asked_is_malformed_where_the_server_counts_as_it_was_asked() -> (
    None
):
    assert isinstance(counted("stop", 9)("vllm_chat").failure(), pg.MalformedResponse)
    assert pg.is_ok(counted("stop", 8)("vllm_chat"))
    assert pg.is_ok(counted("stop", 9)("openai_chat"))
