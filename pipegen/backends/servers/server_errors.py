"""HTTP refusals as pipegen's errors, for every engine alike."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence

from pipegen.backends.http.rates import seconds_of
from pipegen.backends.servers.reading import error_message
from pipegen.backends.servers.wire import ServerRequest, WireReply
from pipegen.core.errors import (
    BackendFailed,
    GenerationError,
    InvalidRequest,
    PromptTooLong,
    RateLimited,
    Timeout,
)

BUSY = frozenset({429, 503, 529})
"""The statuses of a server that has no room just now. 529 is Anthropic's."""
AGAIN = BUSY | {502, 504, *range(520, 525)}
"""The statuses after which a request is sent again: the server did not begin, or a gateway lost
it. Those from 520 to 524 are Cloudflare's words for it.
"""
_DIGITS = 18
"""Digits of a number of tokens, at most."""
WRONG = frozenset({400, 404, 405, 409, 410, 411, 413, 414, 415, 422, 431})
"""The statuses that blame the request."""
KEY = (
    "check the key: api_key, or the environment variable VLLM_API_KEY, SGLANG_API_KEY or"
    " OPENAI_API_KEY"
)
ADDRESS = "check base_url: the server there has no such route, or is another one"
NAMED = (
    "correct what the message names: an option of the request, a field of extra_body, or the"
    " server's dialect"
)
SMALLER = (
    "shorten the prompt, send fewer or smaller images, or raise the server's limit for the size of"
    " a request"
)
HINTS: Mapping[int, str] = {
    400: NAMED,
    401: KEY,
    402: "check the account that the key (api_key) belongs to",
    403: (
        "check the key (api_key): the server does not allow this request with it; the message may"
        " say what it allows"
    ),
    404: (
        "check the address (base_url) and the name that the server has for the model (model, or"
        " served_model_name)"
    ),
    405: ADDRESS,
    407: "a proxy on the way asks for a key: check base_url, or the proxy",
    409: "see the message: the request contradicts what the server does just now",
    410: ADDRESS,
    413: SMALLER,
    414: ADDRESS,
    415: ADDRESS,
    422: NAMED,
    431: "send fewer or shorter headers",
    **dict.fromkeys(
        (502, 520, 521, 523),
        "see that the server behind the gateway runs; the request can be sent again",
    ),
}
"""What to do about a status, where it says so."""
REFUSED = frozenset({*range(300, 400), 401, 402, 403, 407})
"""The statuses that blame the settings: the same request is refused again until these are
corrected.
"""


def retry_after(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """The seconds that a server asks for, from its `Retry-After` (or `retry-after-ms`). It is a
    number, a duration, or a date; None where it is none of these.

    >>> (
    ...     retry_after({"retry-after": "2"}),
    ...     retry_after({"retry-after": "Thu, 01 Jan 1970 00:00:10 GMT"}, now=4.0),
    ...     retry_after({"retry-after-ms": "1500", "retry-after": "2"}),
    ...     retry_after({"retry-after": "soon"}),
    ... )
    (2.0, 6.0, 1.5, None)
    """
    moment = time.time() if now is None else now
    exact = seconds_of(headers.get("retry-after-ms", "") + "ms", moment)
    return seconds_of(headers.get("retry-after", ""), moment) if exact is None else exact


def classified(
    server: str,
    reply: WireReply,
    request: ServerRequest,
    too_long: Callable[[str], tuple[int, int] | None],
) -> GenerationError:
    """The error of a refusal, in any shape; an over-long prompt is `PromptTooLong` whatever the
    status, with its length as pipegen knows it.

    Those of `BUSY` are `RateLimited`, 408, 504, 522 and 524 `Timeout`, those that blame the request
    `InvalidRequest`, and the rest `BackendFailed`. That is `lasting` where a setting is to blame,
    such as the key.
    """
    message, _ = error_message(reply)
    lengths = too_long(message)
    if lengths is not None:
        return PromptTooLong(request.prompt_tokens or lengths[0], lengths[1])
    ending = f": {message}" if message else ""
    words = f"{server} answered {reply.status}{ending}"[:1000]
    if reply.status in BUSY:
        return RateLimited(words, retry_after=retry_after(reply.headers))
    if reply.status in (408, 504, 522, 524):
        return Timeout(words)
    if reply.status in WRONG:
        return InvalidRequest(words, hint=HINTS.get(reply.status, ""))
    redirect_hint = (
        "redirects are not followed: give base_url the address that the server has moved to"
    )
    hint = (
        redirect_hint
        if reply.status in range(300, 400)
        else HINTS.get(reply.status, "see the server's log; the request can be sent again")
    )
    return BackendFailed(
        words, hint=hint, backend=server, scope="row", lasting=reply.status in REFUSED
    )


def lengths_in(message: str, wordings: Sequence[re.Pattern[str]]) -> tuple[int, int] | None:
    """The prompt's length and the limit that a refusal names, by the first of these wordings that
    it has. None where it is about something else.

    >>> lengths_in("300 of 256", (re.compile(r"(?P<prompt>[0-9]+) of (?P<limit>[0-9]+)"),))
    (300, 256)
    """
    first_match = next(
        (match for match in (wording.search(message) for wording in wordings) if match), None
    )
    if first_match is None or max(len(first_match["prompt"]), len(first_match["limit"])) > _DIGITS:
        return None
    return int(first_match["prompt"]), int(first_match["limit"])


def unreachable(server: str, words: str, hint: str = "", *, lasting: bool = False) -> BackendFailed:
    """The error of a connection that could not be made, or broke."""
    hint = (
        hint
        or "see that a server runs there and that base_url is its address; the request can be sent again"
    )
    return BackendFailed(
        f"{server}: {words}", hint=hint, backend=server, scope="row", lasting=lasting
    )
