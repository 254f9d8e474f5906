"""What the end of a server's answer means where it is none, and the errors within answers of status
200: for all routes, whole answers and streams. The words are in `pipegen.records.finish_words`.

>>> gives_up("abort"), refuses("content_filter")
(True, True)
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pipegen.backends.servers.reading import alone
from pipegen.backends.servers.wire import WireReply
from pipegen.core.errors import BackendFailed, GenerationError, MalformedResponse, Refused
from pipegen.records.answer_parts import whole_number
from pipegen.records.finish_words import meaning_of, plain_word

_STATUSES: Mapping[int, str] = {
    400: (
        "bad_request bad_request_error badrequesterror invalid_request invalid_request_error"
        " invalid_argument validation_error context_length_exceeded string_above_max_length"
    ),
    401: "authentication_error unauthenticated unauthorized invalid_api_key invalid_authentication",
    402: "insufficient_quota billing_error payment_required",
    403: "permission_error permission_denied permission_denied_error forbidden access_denied",
    404: "not_found not_found_error notfounderror model_not_found",
    429: (
        "rate_limit rate_limited rate_limit_error ratelimiterror rate_limit_exceeded"
        " rate_limit_reached too_many_requests toomanyrequests resource_exhausted requests tokens"
        " throttled throttling throttling_exception"
    ),
    502: "bad_gateway",
    503: (
        "overloaded overloaded_error engine_overloaded engine_overloaded_error service_unavailable"
        " service_unavailable_error serviceunavailable unavailable capacity_exceeded no_capacity"
        " queue_full model_loading"
    ),
    504: "timeout timeout_error gateway_timeout deadline_exceeded",
}
"""The status that the code or type of an error stands for, where it says none."""
_BY_CODE: Mapping[str, int] = {
    plain_word(code): status for status, codes in _STATUSES.items() for code in codes.split()
}


def gives_up(word: object) -> bool:
    """Whether an answer that ends with this word is none."""
    return isinstance(word, str) and meaning_of(word) in ("failed", "refused")


def refuses(code: object) -> bool:
    """Whether the code of an error says that the server does not answer for what was asked."""
    return isinstance(code, str) and meaning_of(code) == "refused"


def ended_wrong(
    server: str, word: str, words: str = "", text: str = "", refusal: str = ""
) -> GenerationError:
    """The error of an answer that the server ended with this word, which is neither `stop` nor
    `length`, or that it refused.

    words: what else the server says of it. text: what came before.

    >>> ended_wrong("vLLM", "abort", "out of memory").message
    "vLLM gave the answer up (finish_reason 'abort'): out of memory"
    """
    reason, more = f"finish_reason {word!r:.60}", f": {words}"[:1000] if words else ""
    meaning = meaning_of(word)
    if refusal or meaning == "refused":
        said = f": {refusal}"[:1000] if refusal else more
        return Refused(
            f"{server} refused to answer ({reason}){said}", refusal=refusal or words, text=text
        )
    if meaning == "failed":
        return BackendFailed(
            f"{server} gave the answer up ({reason}){more}",
            hint="see the server's log; the request can be sent again",
            backend=server,
            scope="row",
        )
    return MalformedResponse(
        f"{server} ended the answer with {reason}, which is no end that is known{more}",
        hint="the answer was not used: see what the server means by that word",
    )


def error_within(value: object) -> WireReply | None:
    """The refusal that an answer with a good status, or an event of a stream, tells of; None where it
    tells of none.

    It stands beside the choices, in a choice, in its message, or in SGLang's reason for an end.
    Its code is its status, or its words are.

    >>> error_within({"error": {"message": "slow down", "type": "rate_limit_error"}}).status
    429
    >>> error_within({"choices": [], "error": None}) is None
    True
    """
    item = alone(value)
    if not isinstance(item, dict):
        return None
    choices = item.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    inner = (choice.get("message"), choice.get("delta")) if isinstance(choice, dict) else ()
    for holder in (item, choice, *inner):
        error = holder.get("error") if isinstance(holder, dict) else None
        if error and isinstance(error, (str, dict)):
            return _reply(error if isinstance(error, dict) else {"message": error})
    if item.get("object") == "error" or (choices is None and item.get("type") == "error"):
        return _reply(item)
    meta = item.get("meta_info")
    reason = meta.get("finish_reason") if isinstance(meta, dict) else None
    if isinstance(reason, dict) and type(reason.get("status_code")) is int:
        return _reply(reason)
    return None


def _reply(error: Mapping[str, object]) -> WireReply:
    """The error as an answer of the status that it names."""
    status = 500
    for name in ("status", "status_code", "code", "type"):
        code = error.get(name)
        number = whole_number(code)
        if number is not None and 400 <= number < 600:
            status = number
            break
        if isinstance(code, str) and plain_word(code) in _BY_CODE:
            status = _BY_CODE[plain_word(code)]
            break
    return WireReply(status=status, body=json.dumps({"error": dict(error)}).encode())
