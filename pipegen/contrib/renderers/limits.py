"""How long a prompt a server takes: asked once for each server and model, remembered for a while; a question that failed is asked again."""

from __future__ import annotations

import asyncio
import logging
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipegen.contrib.renderers.backend import root_of

__all__ = ["LIMITS", "Limits"]

EXPIRES_AFTER = 300.0
"""Seconds for which an answer is remembered: a server may be started again with another limit."""
FACTS = ("max_req_input_len", "context_length")
"""What SGLang calls its limits on its page of facts."""
Key = tuple[str, str]
_log = logging.getLogger(__name__)


class Limits:
    """The limits found so far. Callers that ask at the same time share one question, and its outcome."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[Key, tuple[float, int | None]] = {}
        self._asking: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Key, asyncio.Task[int | None]]] = weakref.WeakKeyDictionary()

    def clear(self) -> None:
        """Forget everything."""
        self._known.clear()

    async def of(self, client: Any, model: str, *, only_card: bool = False, facts: Sequence[str] = ()) -> int | None:
        """The `max_model_len` of a model, from the server's `/v1/models`; None where it does not say, or the question failed.

        `only_card` takes the one model that a server lists for any name, as SGLang does. `facts` are the paths of a page of facts at the server's root,
        tried one after the other; the least limit counts.
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
            task = asking[key] = asyncio.ensure_future(self._ask(client, key, only_card, facts))
            task.add_done_callback(lambda _: asking.pop(key, None))
        return await asyncio.shield(task)  # a caller that is cancelled does not take the question from the others

    async def _ask(self, client: Any, key: Key, only_card: bool, facts: Sequence[str]) -> int | None:
        listed = await _page(client, "/models")
        limits = [] if listed is None else [_limit_in(listed, key[1], only_card)]
        for path in facts:
            page = await _page(client, f"{root_of(client)}{path}")
            if isinstance(page, Mapping):
                limits += [page.get(name) for name in FACTS]
                break
        if not limits:
            return None
        limit = min((found for found in limits if type(found) is int and found > 0), default=None)
        self._known[key] = (self._clock(), limit)
        return limit


async def _page(client: Any, path: str) -> Any:
    """What the server answers there; None where it cannot be asked, whatever the client raises then."""
    answers = await asyncio.gather(client.get(path, cast_to=dict[str, Any]), return_exceptions=True)
    answer: Any = answers[0]
    if isinstance(answer, Exception):  # of any library: a limit that is not known is no reason to fail
        _log.debug("%s could not be asked: %s", path, answer)
        return None
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _limit_in(listed: Any, model: str, only_card: bool) -> int | None:
    cards = [card for card in listed.get("data") or () if isinstance(card, Mapping)] if isinstance(listed, Mapping) else []
    card = next((card for card in cards if card.get("id") == model), cards[0] if only_card and len(cards) == 1 else {})
    limit = card.get("max_model_len")
    return limit if type(limit) is int and limit > 0 else None


LIMITS = Limits()
"""Those of this process."""
