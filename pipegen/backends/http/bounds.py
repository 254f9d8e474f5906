"""How large an answer may be: bounds of bytes, from what was asked for, so that no server can fill the memory.

A bound is for one row. Plain data in Python takes up to some 25 times the bytes of its JSON, which is why what is not needed is not allowed for.

>>> from pipegen.records.options import GenerationOptions, resolve
>>> from pipegen.backends.servers.wire import ServerRequest
>>> short, long = (ServerRequest(options=resolve(GenerationOptions(max_new_tokens=tokens))) for tokens in (10, 10_000))
>>> most_bytes(long) - most_bytes(short) == 9_990 * TOKEN
True
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipegen.backends.servers.wire import ServerRequest

__all__ = ["BASE", "most_bytes", "most_bytes_of_stream"]

BASE = 2**24
"""The bytes that any answer may have."""
TOKEN, LIKELIEST, EXPERTS = 2**8, 2**8, 2**12
"""The bytes that a token may add to an answer; each of its likeliest others, where logprobs are asked; and what is said of its experts, where that is."""
EVENT = 2**10
"""The bytes that an event of a stream may have besides: one comes for each token."""
PIXEL = 2**6
"""The bytes that a pixel may take where the server prepares images."""
LONGEST = 2**15
"""Tokens where no length was asked for."""


def most_bytes(ask: ServerRequest) -> int:
    """The most bytes that an answer, or one event of a stream, may have."""
    return BASE + _tokens(ask) * _each(ask) + _prompt(ask) + _pixels(ask)


def most_bytes_of_stream(ask: ServerRequest) -> int:
    """The most bytes that the events of a stream may have in all, where each brings only what is new."""
    return most_bytes(ask) + _tokens(ask) * EVENT


def _tokens(ask: ServerRequest) -> int:
    return (ask.options.max_new_tokens or LONGEST) * ask.n


def _each(ask: ServerRequest) -> int:
    likeliest = LIKELIEST * (2 + (ask.options.top_logprobs or 0)) if ask.options.logprobs else 0
    return TOKEN + likeliest + (EXPERTS if _asks_for_experts(ask.extra_body) else 0)


def _prompt(ask: ServerRequest) -> int:
    return ask.prompt_tokens * (2**4 + (EXPERTS if _asks_for_experts(ask.extra_body) else 0))


def _pixels(ask: ServerRequest) -> int:
    return PIXEL * sum(image.width * image.height for image in ask.images) if ask.resized and ask.features is None else 0


def _asks_for_experts(extra_body: Mapping[str, object]) -> bool:
    return any("routed_experts" in name for name in extra_body)
