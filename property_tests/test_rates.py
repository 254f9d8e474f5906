"""No minute has more requests or tokens than it may; nothing waits longer than it must. By a
clock that the test moves.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given, strategies as st
from support.clock import Clock

from pipegen.backends.http.gate import Gate
from pipegen.backends.http.rates import (
    MINUTE,
    CountedRequest,
    RateLimits,
    Rates,
    left_in,
    seconds_of,
)

MOST = 100
asks = st.lists(
    st.tuples(st.floats(0, 90), st.integers(1, MOST), st.floats(0, 1)), min_size=1, max_size=40
)
"""Of each request: seconds since the last one, the tokens that it may take, and the share that it
takes.
"""


@given(asks, st.none() | st.integers(1, 6), st.none() | st.integers(MOST, 4 * MOST))
def test_no_minute_has_more_than_it_may_and_none_waits_for_nothing(
    asked: list[tuple[float, int, float]], requests: int | None, tokens: int | None
) -> None:
    rates, limits, now = Rates(), RateLimits(requests, tokens), 0.0
    sent = list[tuple[float, int]]()

    def fits(more: int) -> bool:
        """The rule in its own words."""
        last = [taken for moment, taken in sent if now < moment + MINUTE]
        few = requests is None or len(last) < requests
        return few and (tokens is None or sum(last) + more <= tokens)

    for pause, estimated, share in asked:
        now += pause
        turn = CountedRequest(estimated)
        wait = rates.enter(turn, now, limits)
        assert (wait is None) == fits(estimated)
        if wait is not None:
            assert not wait.of_server
            now += wait.seconds - 1e-6
            assert not fits(estimated)
            now += 2e-6
            assert rates.enter(turn, now, limits) is None
        taken = round(estimated * share)
        rates.spent(turn, taken, taken)
        sent.append((now, taken))
    for start, _ in sent:
        minute = [taken for moment, taken in sent if start <= moment <= start + 60]
        assert requests is None or len(minute) <= requests
        assert tokens is None or sum(minute) <= tokens


@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(1, MOST), st.booleans()), max_size=30),
    st.integers(1, 4),
    st.integers(MOST, 3 * MOST),
)
def test_gates_of_one_server_share_the_minute_and_each_keeps_its_order(
    rows: list[tuple[int, int, bool]], requests: int, tokens: int
) -> None:
    """Some rows are cancelled while they wait."""
    sent = list[tuple[float, int, int, int]]()

    async def work(loop: Clock) -> None:
        rates = Rates()
        gates = [Gate(64, 0.0, rates, RateLimits(requests, tokens)) for _ in range(2)]

        async def row(number: int, gate: int, size: int) -> None:
            await gates[gate].enter(CountedRequest(size))
            sent.append((loop.time(), size, gate, number))

        tasks = [
            asyncio.create_task(row(number, gate, size))
            for number, (gate, size, _) in enumerate(rows)
        ]
        await loop.go_on(0.0)
        for task, (*_, stays) in zip(tasks, rows, strict=True):
            if not stays and not task.done():
                task.cancel()
        for second in range(0, 70 * (len(rows) + 1), 5):
            await loop.go_on(float(second))
        assert all(task.done() for task in tasks)
        assert rates.words(loop.time()) == ""

    loop = Clock()
    try:
        loop.run_until_complete(work(loop))
    finally:
        loop.close()
    for start, *_ in sent:
        minute = [size for moment, size, *_ in sent if start <= moment <= start + 60]
        assert len(minute) <= requests
        assert sum(minute) <= tokens
    for gate in range(2):
        numbers = [number for _, _, at, number in sent if at == gate]
        assert numbers == sorted(numbers)
    stayed = {number for number, (*_, stays) in enumerate(rows) if stays}
    assert stayed <= {number for *_, number in sent}


@given(st.integers(0, 5), st.floats(0.001, 300), st.integers(0, 20), st.integers(0, 4))
def test_what_a_server_says_is_left_is_all_that_is_sent_until_its_reset(
    left: int, reset: float, ahead: int, meanwhile: int
) -> None:
    """What was sent after the request that says so is not in its number."""
    rates, limits = Rates(), RateLimits(requests=1000)
    rates.limited = True
    for _ in range(ahead):
        rates.enter(CountedRequest(1), 0.0, limits)
    says = CountedRequest(1)
    rates.enter(says, 0.0, limits)
    for _ in range(meanwhile):
        rates.enter(CountedRequest(1), 0.0, limits)
    headers = {
        "X-RateLimit-Remaining-Requests": str(left),
        "x-ratelimit-reset-requests": f"{reset}s",
    }
    rates.note(headers, says, 0.0, 0.0)
    more = 0
    while (wait := rates.enter(CountedRequest(1), 0.0, limits)) is None:
        more += 1
    assert more == max(0, left - meanwhile)
    assert wait.of_server
    assert wait.seconds == pytest.approx(reset)
    assert rates.enter(CountedRequest(1), reset + 1e-6, limits) is None


@given(st.integers(0, 10**7))
def test_every_form_of_a_duration_is_read(milliseconds: int) -> None:
    seconds = milliseconds / 1e3
    minutes, rest = divmod(milliseconds, 60_000)
    hours, minutes_left = divmod(minutes, 60)
    now = datetime(2026, 11, 29, 3, 4, 5, tzinfo=UTC)
    then = now + timedelta(milliseconds=milliseconds)
    forms = (
        f"{seconds}",
        f"{seconds}s",
        f"{milliseconds}ms",
        f"{minutes}m{rest / 1e3}s",
        f"{hours}h{minutes_left}m{rest / 1e3}s",
        f"{hours}h {minutes_left}m {rest // 1000}s {rest % 1000}ms",
        then.isoformat(),
        then.isoformat().replace("+00:00", "Z"),
        f"{then.timestamp():.3f}",
        f"{then.timestamp() * 1e3:.0f}",
    )
    for form in forms:
        assert seconds_of(form, now.timestamp()) == pytest.approx(seconds, abs=2e-3), form
    http_date = seconds_of(format_datetime(then, usegmt=True), now.timestamp())
    assert http_date == pytest.approx(seconds, abs=1)


@given(st.dictionaries(st.text(max_size=30), st.text(max_size=30), max_size=5), st.text())
def test_no_header_raises(headers: dict[str, str], text: str) -> None:
    for name in ("remaining-requests", "reset-requests", "tokens-remaining", "remaining"):
        headers[f"x-ratelimit-{name}"] = text
    assert all(left.number >= 0 and left.seconds >= 0 for left in left_in(headers, 0.0))
