"""How much a server is sent in a minute, by all routes of this process that ask it with the same
key. And what the server's own headers report as left.

What is sent counts for `MINUTE` seconds from then on: so no minute has more than is allowed. A
request counts with the tokens of its prompt and of the longest answer that it may have. Once its
answer has come, it counts with those that it took.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import math
import os
import re
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple, Protocol
from weakref import WeakKeyDictionary

MINUTE = 60.5
"""Seconds that a request counts: a minute, and half a second more, since not each takes the same
time to the server.
"""
ANSWER = 1024
"""Tokens of an answer whose length nothing limits, before any has come; then those of the longest."""
_LOCK = threading.RLock()
"""Held for a few counts at a time. The garbage collector may end a request of this thread then."""
if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(
        before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release
    )
_UNITS = {
    "d": 86400.0,
    "h": 3600.0,
    "m": 60.0,
    "s": 1.0,
    "ms": 1e-3,
    "us": 1e-6,
    "µs": 1e-6,
    "ns": 1e-9,
}
_PARTS = re.compile(r"([0-9]+(?:\.[0-9]*)?)\s*(d|h|ms|m|s|us|µs|ns)\s*")
_SHORT = {"r": "remaining", "t": "reset"}
_PERIODS = {"second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86400.0}
_NAME = re.compile(r"(?:.*-)?rate-?limit-(.+)")
_POLICIES = re.compile(
    r'(?:^|,)\s*"?([^",;=\s][^",;=]*)"?;|\b(r|remaining|t|reset)\s*=\s*([0-9.]+)'
)
"""The name of a policy, or what is left of it, or the seconds until its reset."""
_YEAR = 366 * 86400.0
"""A number of seconds that is no more than a year before now is a time, counted from 1970."""


class RateLimits(NamedTuple):
    """What a route may send in a minute; None is no limit."""

    requests: int | None = None
    tokens: int | None = None


class Wait(NamedTuple):
    """For how many seconds nothing more may be sent, why, and whether the server asks for it."""

    seconds: float
    why: str
    of_server: bool = False


class Left(NamedTuple):
    """What a server reports as left of a quota, and for how many seconds."""

    quota: str
    """Such as `requests` or `tokens minute`."""
    of_tokens: bool
    number: float
    seconds: float


@dataclass(slots=True, eq=False)
class CountedRequest:
    """One request as it counts."""

    tokens: int
    """Those that it may take, then those that it took."""
    sent_at: float = 0.0
    taken: tuple[int, int] = (0, 0)
    """Requests and tokens that were sent until then, its own among them."""


class _Quota(NamedTuple):
    """What is left of a quota of the server, as one answer reports it."""

    left: Left
    until: float
    taken: tuple[int, int]
    """As in the turn of that answer: what was sent later is not in it."""
    why: str


class _Waits(Protocol):
    """Where requests wait, on a loop of its own."""

    def look(self) -> None:
        """See whether the first may go."""
        ...


class Rates:
    """What one server was sent with one key. Any thread may use it.

    >>> rates, limits = Rates(), RateLimits(requests=2)
    >>> [rates.enter(CountedRequest(1), moment, limits) for moment in (0.0, 20.0)]
    [None, None]
    >>> rates.enter(CountedRequest(1), 30.0, limits)
    Wait(seconds=30.5, why='requests_per_minute=2', of_server=False)
    """

    def __init__(self) -> None:
        self.limited = False
        """Whether any route has limits: else nothing is counted."""
        self.longest = ANSWER
        """Tokens that an answer of unlimited length counts with."""
        self._turns, self._tokens = deque[CountedRequest](), 0
        """The last minute's, and their tokens."""
        self._taken = 0, 0
        self._quotas: dict[str, _Quota] = {}
        self._waiting = WeakKeyDictionary[_Waits, tuple[asyncio.AbstractEventLoop, str, float]]()

    def enter(self, turn: CountedRequest, now: float, limits: RateLimits) -> Wait | None:
        """Count a request that is sent now; or why, and how long, it must wait."""
        with _LOCK:
            while self._turns and self._turns[0].sent_at + MINUTE <= now:
                self._tokens -= self._turns.popleft().tokens
            wait = max(self._waits(turn, now, limits), default=None) if any(limits) else None
            if wait is None:
                requests, tokens = self._taken
                self._taken = turn.taken = requests + 1, tokens + turn.tokens
                turn.sent_at = now
                self._turns.append(turn)
                self._tokens += turn.tokens
            return wait

    def _waits(self, turn: CountedRequest, now: float, limits: RateLimits) -> Iterator[Wait]:
        if limits.requests is not None and len(self._turns) >= limits.requests:
            oldest = self._turns[len(self._turns) - limits.requests]
            why = f"requests_per_minute={limits.requests}"
            yield Wait(oldest.sent_at + MINUTE - now, why)
        if limits.tokens is not None and self._tokens + turn.tokens > limits.tokens:
            over = self._tokens + turn.tokens - limits.tokens
            ends = now
            for earlier in self._turns:
                over, ends = over - earlier.tokens, earlier.sent_at + MINUTE
                if over <= 0:
                    break
            yield Wait(ends - now, f"tokens_per_minute={limits.tokens}")
        for quota in self._quotas.values():
            kind, left = int(quota.left.of_tokens), quota.left
            used = self._taken[kind] - quota.taken[kind] + (turn.tokens if kind else 1)
            if now < quota.until and used > left.number:
                yield Wait(quota.until - now, quota.why, of_server=True)

    def spent(self, turn: CountedRequest, tokens: int, answer: int) -> None:
        """Correct the tokens of a request by those that it took, `answer` of them in its answer."""
        with _LOCK:
            if turn.sent_at >= (self._turns[0].sent_at if self._turns else math.inf):
                self._tokens += tokens - turn.tokens
            turn.tokens, self.longest = tokens, max(self.longest, answer)
        self._changed()

    def note(
        self, headers: Mapping[str, str], turn: CountedRequest, now: float, closed: float
    ) -> None:
        """Note what an answer reports as left, and that nothing may be sent for `closed` seconds."""
        reported = [
            (left, f"the server has {left.number:g} {left.quota} left")
            for left in left_in(headers, time.time())
        ]
        if closed:
            reported.append((Left("retry-after", False, 0, closed), "the server asks to wait"))
        with _LOCK:
            for left, why in reported:
                known = self._quotas.get(left.quota)
                if known is None or known.taken[0] <= turn.taken[0] or known.until <= now:
                    self._quotas[left.quota] = _Quota(left, now + left.seconds, turn.taken, why)
        if reported:
            self._changed()

    def waits(self, place: _Waits, wait: Wait | None, until: float) -> None:
        """Remember why, and until when, the first at a place on the running loop waits."""
        with _LOCK:
            if wait is not None:
                self._waiting[place] = asyncio.get_running_loop(), wait.why, until
            else:
                self._waiting.pop(place, None)

    def _changed(self) -> None:
        with _LOCK:
            places = [(place, loop) for place, (loop, *_) in self._waiting.items()]
        for place, loop in places:
            with contextlib.suppress(RuntimeError):  # that loop is closed
                loop.call_soon_threadsafe(place.look)

    def words(self, now: float) -> str:
        """Why, and for how long, requests wait; empty where none does.

        >>> Rates().words(0.0)
        ''
        """
        with _LOCK:
            waits = [(until - now, why) for _, why, until in self._waiting.values() if until > now]
        seconds, why = min(waits, default=(0.0, ""))
        return why and f"waits {math.ceil(seconds)} s ({why})"


_kept: dict[object, Rates] = {}


def rates_of(server: object) -> Rates:
    """The rates of a server and a key: the same for all routes of this process, one after another
    too.

    >>> rates_of(("http://h", "key")) is rates_of(("http://h", "key"))
    True
    """
    with _LOCK:
        return _kept.setdefault(server, Rates())


def seconds_of(text: str, now: float) -> float | None:
    """The seconds that a header names; None where it names none. It is a number, a duration such as
    `6m0s` or `20ms`, or a time (RFC 3339, an HTTP date, or a count from 1970).

    >>> [seconds_of(text, now=4.0) for text in ("2", "6m0s", "1h2m3.5s", "20ms", "soon")]
    [2.0, 360.0, 3723.5, 0.02, None]
    >>> seconds_of("1970-01-01T00:00:10Z", 4.0), seconds_of("Thu, 01 Jan 1970 00:00:10 GMT", 4.0)
    (6.0, 6.0)
    """
    text = text.strip()
    try:
        seconds = float(text)
        if seconds >= max(_YEAR, now - _YEAR):
            seconds = (seconds / 1e3 if seconds / 1e3 >= now - _YEAR else seconds) - now
    except ValueError:
        parts = _PARTS.findall(text.lower())
        if parts and not _PARTS.sub("", text.lower()):
            seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
        else:
            moment = _moment(text)
            if moment is None:
                return None
            seconds = moment - now
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _moment(text: str) -> float | None:
    for read in (datetime.fromisoformat, email.utils.parsedate_to_datetime):
        with contextlib.suppress(ValueError, TypeError, OverflowError, LookupError):
            moment = read(text)
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return None


def left_in(headers: Mapping[str, str], now: float) -> list[Left]:
    """What the headers of an answer report as left, by quota. They are those of OpenAI and of
    servers like it, of Anthropic, and of the IETF's drafts. A quota whose end no header names is for
    the period in its name, else for a minute.

    >>> left_in({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1m2s"}, 0.0)
    [Left(quota='requests', of_tokens=False, number=0.0, seconds=62.0)]
    >>> left_in({"anthropic-ratelimit-input-tokens-remaining": "7"}, 0.0)
    [Left(quota='input tokens', of_tokens=True, number=7.0, seconds=60.0)]
    """
    counts: dict[str, float] = {}
    ends: dict[str, float] = {}
    for header, value in headers.items():
        for name, text in _single(header.lower(), value):
            words = [word for word in name.split("-") if word not in ("per", "after")]
            quota = " ".join(word for word in words if word not in ("remaining", "reset"))
            if "remaining" in words:
                with contextlib.suppress(ValueError):
                    if float(text) >= 0:
                        counts[quota or "requests"] = float(text)
            elif "reset" in words and (seconds := seconds_of(text, now)) is not None:
                ends[quota or "requests"] = seconds
    return [
        Left(quota, of_tokens, count, ends.get(quota, _period(quota)))
        for quota, count in counts.items()
        if (of_tokens := "token" in quota) or "req" in quota
    ]


def _single(header: str, value: str) -> Iterator[tuple[str, str]]:
    """The names and values that a header holds: one, or those of each policy in the header of the
    IETF's drafts.
    """
    named = _NAME.fullmatch(header)
    if named is not None:
        yield named[1], value
    elif header == "ratelimit":
        quota = "requests"
        for policy, name, number in _POLICIES.findall(value.lower()):
            if policy:
                quota = policy if "token" in policy else f"requests-{policy}"
            else:
                yield f"{quota}-{_SHORT.get(name, name)}", number


def _period(quota: str) -> float:
    return next((seconds for word, seconds in _PERIODS.items() if word in quota), 60.0)
