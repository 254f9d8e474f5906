"""HTTP refusals as pipegen's errors, for every engine alike."""

from __future__ import annotations

import email.utils
import math
import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence

from pipegen.backends.servers.reading import error_message
from pipegen.backends.servers.wire import ServerRequest, WireReply
from pipegen.core.errors import BackendFailed, GenerationError, InvalidRequest, PromptTooLong, RateLimited, Timeout

__all__ = ["AGAIN", "classified", "lengths_in", "retry_after", "unreachable"]

AGAIN = frozenset({429, 502, 503, 504})
"""The statuses after which a request is sent again: the server did not begin, or a gateway lost it."""
_DIGITS = 18
"""Digits of a number of tokens, at most."""
WRONG = frozenset({400, 404, 405, 409, 411, 413, 414, 415, 422, 431})
"""The statuses that blame the request."""


def retry_after(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """The seconds that a server asks for, from its `Retry-After`: a number, or a date; None where it says neither.

    >>> retry_after({"retry-after": "2"}), retry_after({"retry-after": "Thu, 01 Jan 1970 00:00:10 GMT"}, now=4.0), retry_after({"retry-after": "soon"})
    (2.0, 6.0, None)
    """
    header = headers.get("retry-after", "").strip()
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(header).timestamp() - (time.time() if now is None else now)
        except (ValueError, TypeError, OverflowError, LookupError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def classified(server: str, reply: WireReply, ask: ServerRequest, too_long: Callable[[str], tuple[int, int] | None]) -> GenerationError:
    """The error of a refusal, in any shape; an over-long prompt is `PromptTooLong` whatever the status, with its length as pipegen knows it.

    429 and 503 are `RateLimited`, 408 and 504 `Timeout`, 4xx `InvalidRequest`, and the rest `BackendFailed`.
    """
    message, _ = error_message(reply)
    lengths = too_long(message)
    if lengths is not None:
        return PromptTooLong(ask.prompt_tokens or lengths[0], lengths[1])
    ending = f": {message}" if message else ""
    words = f"{server} answered {reply.status}{ending}"[:1000]
    if reply.status in (429, 503):
        return RateLimited(words, retry_after=retry_after(reply.headers))
    if reply.status in (408, 504):
        return Timeout(words)
    if reply.status in WRONG:
        return InvalidRequest(words)
    hint = "check the key: api_key, or the environment variable that docs/servers.md names" if reply.status in (401, 403) else ""
    if reply.status in range(300, 400):
        hint = "redirects are not followed: give base_url the address that the server has moved to"
    return BackendFailed(words, hint=hint, backend=server, scope="row", incident=uuid.uuid4().hex[:12])


def lengths_in(message: str, wordings: Sequence[re.Pattern[str]]) -> tuple[int, int] | None:
    """The prompt's length and the limit that a refusal names, by the first of these wordings that it has; None where it is about something else.

    >>> lengths_in("300 of 256", (re.compile(r"(?P<prompt>[0-9]+) of (?P<limit>[0-9]+)"),))
    (300, 256)
    """
    found = next((match for match in (wording.search(message) for wording in wordings) if match), None)
    if found is None or max(len(found["prompt"]), len(found["limit"])) > _DIGITS:
        return None
    return int(found["prompt"]), int(found["limit"])


def unreachable(server: str, words: str) -> BackendFailed:
    """The error of a connection that could not be made, or broke."""
    hint = "see that a server runs there and that base_url is its address; the request can be sent again"
    return BackendFailed(f"{server}: {words}", hint=hint, backend=server, scope="row", incident=uuid.uuid4().hex[:12])
