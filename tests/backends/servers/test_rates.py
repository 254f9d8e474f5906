"""Limits of requests and tokens a minute: by a clock that the test moves, and over the wire."""

from __future__ import annotations

import asyncio
import io
import json
import math
import threading
from pathlib import Path
from typing import Any

import pytest
from support.attempts import Row, sender_to
from support.canned_server import Canned, CannedServer, events
from support.clock import Clock, on_clock

import pipegen as pg
from pipegen.backends.http.rates import (
    MINUTE,
    CountedRequest,
    Left,
    RateLimits,
    Rates,
    left_in,
    rates_of,
)
from pipegen.core.slots import is_ok

pytest.importorskip("aiohttp")


@pytest.fixture(autouse=True)
def _nothing_was_sent_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipegen.backends.http.rates._kept", {})


def good(usage: dict[str, int] | None = None) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": "stop", "message": {"content": "Hi"}}
    return {"choices": [choice], "usage": usage}


class Said:
    """An answer that has come."""

    def __init__(
        self,
        status: int = 200,
        headers: dict[str, str] | None = None,
        usage: dict[str, int] | None = None,
    ) -> None:
        self.status, self.headers, self.usage = status, headers or {}, usage

    async def body(self, most: int) -> bytes:
        return json.dumps(good(self.usage)).encode() if self.status == 200 else b"{}"

    def came(self) -> bytes:
        return b""

    def close(self) -> None:
        """It has ended."""


class Server:
    """It gives these answers, one after the other and the last one again; `asked` has the moment of
    each.
    """

    def __init__(self, loop: Clock, *answers: Said) -> None:
        self.loop, self.answers, self.asked = loop, answers, list[float]()

    async def open(self, method: str, url: str, body: Any) -> Said:
        self.asked.append(self.loop.time())
        return self.answers[min(len(self.asked), len(self.answers)) - 1]

    async def close(self) -> None:
        """Nothing is open."""


async def ask(sender: Any, count: int = 1, **ends: Any) -> list[asyncio.Task[Any]]:
    """Rows that have begun."""
    loop: Any = asyncio.get_running_loop()
    tasks = [
        asyncio.create_task(sender.whole(Row(), sender.transport.row(**ends))) for _ in range(count)
    ]
    await loop.go_on(loop.time())
    return tasks


async def through(loop: Clock, seconds: float, by: float = 0.5) -> None:
    while loop.time() < seconds:
        await loop.go_on(loop.time() + by)


@on_clock
async def test_waiting_for_the_limit_takes_nothing_of_a_row_s_time(
    loop: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(loop, Said())
    sender = await sender_to(server, monkeypatch, requests_per_minute=2, timeout=5.0)
    tasks = await ask(sender, 6)
    await through(loop, 3 * MINUTE)
    assert all(is_ok(task.result()) for task in tasks)
    assert [round(moment) for moment in server.asked] == [0, 0, 60, 60, 121, 121]


@on_clock
async def test_the_time_of_a_whole_call_counts_all_the_same(
    loop: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(loop, Said())
    sender = await sender_to(server, monkeypatch, requests_per_minute=1)
    first, second = await ask(sender, 2, call_ends=30.0)
    await through(loop, 31.0)
    assert is_ok(first.result())
    assert isinstance(second.result().failure(), pg.Timeout)
    assert server.asked == [0.0]


@on_clock
async def test_one_that_is_cancelled_while_it_waits_is_not_sent(
    loop: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(loop, Said())
    sender = await sender_to(server, monkeypatch, requests_per_minute=1)
    first, second, third = await ask(sender, 3)
    await loop.go_on(1.0)
    assert "waits 60 s (requests_per_minute=1)" in sender.transport.rates.words(loop.time())
    second.cancel()
    await through(loop, 2 * MINUTE - 1)
    assert is_ok(first.result())
    assert is_ok(third.result())
    assert [round(moment) for moment in server.asked] == [0, 60]
    assert sender.transport.rates.words(loop.time()) == ""


@on_clock
async def test_a_request_that_is_sent_again_counts_again(
    loop: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(loop, Said(502), Said())
    sender = await sender_to(server, monkeypatch, requests_per_minute=1)
    call = sender.transport.row()
    task = asyncio.create_task(sender.whole(Row(), call))
    await through(loop, MINUTE + 2)
    assert is_ok(task.result())
    assert call.retries == 1
    first, second = server.asked
    assert MINUTE <= second - first < MINUTE + 1


@on_clock
async def test_looking_up_what_a_server_offers_waits_for_no_limit(
    loop: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipegen.backends.http.transport import RowCall
    from pipegen.backends.servers.wire import WireRequest

    server = Server(loop, Said())
    sender = await sender_to(server, monkeypatch, requests_per_minute=1)
    waiting = await ask(sender, 2)
    await loop.go_on(1.0)
    await sender.transport.once(WireRequest(path="/v1/models", method="GET"), RowCall(9.0))
    assert server.asked == [0.0, 1.0]
    waiting[1].cancel()
    await asyncio.wait(waiting)


@on_clock
async def test_tokens_are_counted_as_the_most_that_they_may_be_until_the_answer_says_them(
    loop: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request here may take 5 for its prompt and 512 for its answer, and takes 11."""
    server = Server(loop, Said(usage={"prompt_tokens": 1, "completion_tokens": 10}))
    sender = await sender_to(server, monkeypatch, tokens_per_minute=560)
    tasks = await ask(sender, 6)
    await loop.go_on(0.0)
    for _ in range(10):
        await loop.go_on(0.1)
    assert len(server.asked) == 4  # a fifth might make 44 + 517
    await through(loop, MINUTE + 1)
    assert all(is_ok(task.result()) for task in tasks)
    assert len(server.asked) == 6


@on_clock
async def test_what_no_minute_has_is_refused_in_words(
    loop: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(loop, Said())
    sender = await sender_to(server, monkeypatch, tokens_per_minute=100)
    (task,) = await ask(sender)
    await loop.go_on(0.0)
    refusal = task.result().failure()
    assert isinstance(refusal, pg.InvalidRequest)
    assert "tokens_per_minute allows 100" in refusal.message
    assert "max_new_tokens" in refusal.hint
    assert server.asked == []


@pytest.mark.parametrize(
    "headers",
    [
        {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "20s"},
        {"x-ratelimit-remaining-tokens": "3", "x-ratelimit-reset-tokens": "0m20s"},
        {"x-ratelimit-remaining-tokens-minute": "0", "x-ratelimit-reset-tokens-minute": "20.0"},
        {"RateLimit-Remaining": "0", "RateLimit-Reset": "20"},
        {"RateLimit": '"default";r=0;t=20'},
        {"RateLimit": '"burst";r=0;t=20, "daily";r=900;t=86400'},
        {"RateLimit": "daily;r=900;t=86400, tokens;t=20;r=0"},
        {"RateLimit": "limit=10, remaining=0, reset=20"},
        {"x-ratelimit-remaining": "0", "x-ratelimit-reset-after": "20000ms"},
        {"anthropic-ratelimit-output-tokens-remaining": "0", "retry-after": "9"}
        | {"anthropic-ratelimit-output-tokens-reset": "1970-01-01T00:00:20Z"},
    ],
)
@on_clock
async def test_a_server_s_own_headers_slow_the_next_ones_down(
    loop: Clock, monkeypatch: pytest.MonkeyPatch, headers: dict[str, str]
) -> None:
    monkeypatch.setattr("pipegen.backends.http.rates.time.time", lambda: 0.0)
    server = Server(loop, Said(headers=headers), Said())
    sender = await sender_to(server, monkeypatch, requests_per_minute=1000)
    (first,) = await ask(sender)
    await loop.go_on(0.0)
    assert is_ok(first.result())
    more = await ask(sender, 2)
    await loop.go_on(1.0)
    assert "the server has" in sender.transport.rates.words(loop.time())
    await through(loop, 21.0)
    assert all(is_ok(task.result()) for task in more)
    assert server.asked == [0.0, 20.0, 20.0]


@on_clock
async def test_without_limits_headers_change_nothing(
    loop: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "20s"}
    server = Server(loop, Said(headers=headers))
    sender = await sender_to(server, monkeypatch)
    for _ in range(3):
        (task,) = await ask(sender)
        await loop.go_on(0.0)
        assert is_ok(task.result())
    assert server.asked == [0.0] * 3


@pytest.mark.parametrize(
    ("outage", "reset", "sent"), [(0.0, "59s", 2), (0.0, "61s", 1), (120.0, "119s", 2)]
)
@on_clock
async def test_a_server_that_has_nothing_left_is_waited_for_a_minute_or_an_outage(
    loop: Clock, monkeypatch: pytest.MonkeyPatch, outage: float, reset: str, sent: int
) -> None:
    headers = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": reset}
    server = Server(loop, Said(headers=headers), Said())
    sender = await sender_to(server, monkeypatch, requests_per_minute=9, outage=outage)
    (first,) = await ask(sender)
    await loop.go_on(0.0)
    first.result()
    second, third = await ask(sender, 2)
    await loop.go_on(0.0)
    if sent == 1:
        error = second.result().failure()
        assert isinstance(error, pg.RateLimited)
        assert error.retry_after == 61.0
        assert "was not sent" in error.message
        assert not is_ok(third.result())
    await through(loop, 121.0)
    assert len(server.asked) == (3 if sent == 2 else 1)
    assert is_ok(third.result()) == (sent == 2)


@on_clock
async def test_retry_after_keeps_all_routes_of_a_server_away(
    loop: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those with limits; and one without them is counted."""
    server = Server(loop, Said(429, {"retry-after-ms": "10000"}), Said())
    limits = {"requests_per_minute": 2, "retries": 0, "outage": 0.0}
    one, other = [await sender_to(server, monkeypatch, **limits) for _ in range(2)]
    free = await sender_to(server, monkeypatch)
    assert one.transport.rates is other.transport.rates is free.transport.rates
    (refused,) = await ask(one)
    await loop.go_on(0.0)
    assert isinstance(refused.result().failure(), pg.RateLimited)
    (late,) = await ask(other)
    await loop.go_on(9.0)
    assert not late.done()
    await loop.go_on(10.0)
    assert is_ok(late.result())
    (free_task,) = await ask(free)
    await loop.go_on(11.0)
    assert is_ok(free_task.result())
    (last,) = await ask(one)
    await through(loop, MINUTE + 9)
    assert not last.done()
    await through(loop, MINUTE + 11)
    assert is_ok(last.result())
    assert server.asked[:3] == [0.0, 10.0, 10.0]


@on_clock
async def test_nothing_is_given_up_while_an_answer_is_out_that_may_report_more(
    loop: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, many = [
        {"x-ratelimit-remaining-tokens": number, "x-ratelimit-reset-tokens": "6m0s"}
        for number in ("1100", "9000")
    ]
    server = Server(loop, Said(headers=few), Said(headers=many))
    sender = await sender_to(server, monkeypatch, requests_per_minute=9, outage=0.0)
    await asyncio.wait(await ask(sender))
    tasks = await ask(sender, 4)
    await loop.go_on(0.1)
    assert all(is_ok(task.result()) for task in tasks)
    assert len(server.asked) == 5


def test_a_route_without_limits_keeps_no_more_than_the_last_minute() -> None:
    rates = Rates()
    for second in range(500):
        rates.enter(CountedRequest(1), float(second), RateLimits())
    assert len(rates._turns) == math.ceil(MINUTE)


def test_servers_and_keys_are_counted_apart() -> None:
    from pipegen.backends.http.access import access_to

    def rates(url: str, key: str) -> Any:
        return rates_of(access_to(url, default="", variable="NO", api_key=key).who)

    kept = rates("http://a:1/v1", "k")
    assert rates("http://A:1", "k") is kept
    assert rates("http://a:1", "l") is not kept
    assert rates("http://b:1", "k") is not kept


def test_an_answer_of_openai_s_own_example_is_read() -> None:
    headers = {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-limit-tokens": "150000",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-remaining-tokens": "149984",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-reset-tokens": "6m0s",
        "x-ratelimit-over-limit": "no",
    }
    assert left_in(headers, 0.0) == [
        Left("requests", False, 59, 1.0),
        Left("tokens", True, 149984, 360.0),
    ]
    assert left_in({"x-ratelimit-remaining-tokens": "-1"}, 0.0) == []
    assert left_in({"x-ratelimit-remaining-req-day": "1"}, 0.0)[0].seconds == 86400


# Over the wire


def openai(server: Any, **settings: Any) -> Any:
    return pg.backends.openai_server("m", base_url=server.url, **settings)


@pytest.mark.parametrize("way", ["run", "imap", "stream", "arun", "job"])
def test_all_ways_to_ask_count(way: str, tmp_path: Path) -> None:
    """The fourth request in a minute is one too many: its call has no time for the next minute."""
    whole = Canned(good({"prompt_tokens": 1, "completion_tokens": 2}))
    piece = {"index": 0, "finish_reason": "stop", "delta": {"content": "Hi"}}
    with CannedServer(events({"choices": [piece]}) if way == "stream" else whole) as server:
        route = openai(server, requests_per_minute=3, batch_budget=1.0)
        asked: Any = [{"prompt": str(number)} for number in range(4)]
        with route:
            if way == "run":
                slots = [*pg.run(route, asked)]
            elif way == "imap":
                slots = [*pg.imap(route, asked)]
            elif way == "arun":
                slots = [*asyncio.run(pg.arun(route, asked))]  # type: ignore[arg-type]
            elif way == "job":
                slots = [*pg.job(route, asked, tmp_path / "job")]
            else:
                slots = [event.slot for event in pg.stream(route, asked) if hasattr(event, "slot")]
    assert [is_ok(slot) for slot in slots] == [True] * 3 + [False]
    assert isinstance(slots[-1].failure(), pg.Timeout)
    assert len(server.bodies) == 3
    assert {body["messages"][0]["content"] for body in server.bodies} == {"0", "1", "2"}


def test_runs_in_threads_share_a_minute() -> None:
    slots = list[Any]()
    with CannedServer(Canned(good())) as server:

        def work() -> None:
            with openai(server, requests_per_minute=5, batch_budget=1.0) as route:
                slots.extend(pg.run(route, [{"prompt": str(number)} for number in range(4)]))

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sum(is_ok(slot) for slot in slots) == 5
    assert len(server.bodies) == 5


def test_a_route_that_is_opened_after_another_was_closed_shares_its_minute() -> None:
    counts = list[int]()
    with CannedServer(Canned(good())) as server:
        for _ in range(2):
            with openai(server, requests_per_minute=3, batch_budget=1.0) as route:
                slots = pg.run(route, [{"prompt": "a"}, {"prompt": "b"}])
            counts.append(sum(map(is_ok, slots)))
    assert counts == [2, 1]


def test_generate_says_why_it_waits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipegen.cli import main, progress_line

    monkeypatch.setattr(progress_line, "EVERY", 0.0)
    monkeypatch.setattr(progress_line, "CHECKED", 0.01)
    rows = tmp_path / "in.jsonl"
    rows.write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    with CannedServer(Canned(good())) as server:
        words = f"generate {rows} -o {tmp_path / 'out.jsonl'} --backend openai --model m"
        limits = "--requests-per-minute 1 --batch-budget 1"
        with pytest.raises(SystemExit):
            main([*words.split(), "--base-url", server.url, *limits.split()])
    assert "done, 1 failed" in (line := capsys.readouterr().err)
    assert "(requests_per_minute=1)" in line


def test_the_progress_line_says_why_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    from pipegen.cli.outputs import Tally
    from pipegen.cli.progress_line import Meter, progress

    class Engine:
        waits = "waits 12 s (requests_per_minute=60)"

    meter = Meter(Tally(), 3, engines=[object(), Engine()])
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    with progress(3, meter) as moved:
        moved(0, None)
    assert "waits 12 s (requests_per_minute=60)" in terminal.getvalue()
    meter.shown -= 60
    monkeypatch.setattr("sys.stderr", line := io.StringIO())
    meter.tell()
    assert (
        line.getvalue().rstrip().endswith("0/3 done, 0 failed, waits 12 s (requests_per_minute=60)")
    )
