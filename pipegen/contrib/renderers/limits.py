"""How long a prompt a server takes: asked once for each server and model, remembered for a while; a question that failed is asked again."""

from __future__ import annotations

import asyncio
import sys
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["LIMITS", "Limits"]

EXPIRES_AFTER = 300.0
"""Seconds for which an answer is remembered: a server may be started again with another limit."""
Key = tuple[str, str]


class Limits:
    """The limits found so far. Callers that ask at the same time share one question, and its outcome."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[Key, tuple[float, int | None]] = {}
        self._asking: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Key, asyncio.Task[int | None]]] = weakref.WeakKeyDictionary()

    def clear(self) -> None:
        """Forget everything."""
        self._known.clear()

    async def of(self, client: Any, model: str, *, only_card: bool = False) -> int | None:
        """The `max_model_len` of a model, from the server's `/v1/models`; None where it does not say, or the question failed.

        `only_card` takes the one model that a server lists for any name, as SGLang does.
        """
        key = (str(getattr(client, "base_url", "")), model)
        at, limit = self._known.get(key, (float("-inf"), None))
        if self._clock() - at < EXPIRES_AFTER:
            return limit
        if getattr(client, "get", None) is None:
            return None
        asking = self._asking.setdefault(asyncio.get_running_loop(), {})
        task = asking.get(key)
        if task is None:
            task = asking[key] = asyncio.ensure_future(self._ask(client, key, only_card))
            task.add_done_callback(lambda _: asking.pop(key, None))
        return await asyncio.shield(task)  # a caller that is cancelled does not take the question from the others

    async def _ask(self, client: Any, key: Key, only_card: bool) -> int | None:
        try:
            listed = await client.get("/models", cast_to=dict[str, Any])
        except _client_errors():
            return None
        limit = _limit_in(listed, key[1], only_card)
        self._known[key] = (self._clock(), limit)
        return limit


def _client_errors() -> tuple[type[Exception], ...]:
    """What a client raises when a server cannot be asked: no connection, a refusal, an answer that is no JSON."""
    openai: Any = sys.modules.get("openai")
    return (OSError, ValueError, *((openai.OpenAIError,) if openai is not None else ()))


def _limit_in(listed: Any, model: str, only_card: bool) -> int | None:
    cards = [card for card in listed.get("data") or () if isinstance(card, Mapping)] if isinstance(listed, Mapping) else []
    card = next((card for card in cards if card.get("id") == model), cards[0] if only_card and len(cards) == 1 else {})
    limit = card.get("max_model_len")
    return limit if type(limit) is int and limit > 0 else None


LIMITS = Limits()
"""Those of this process."""
