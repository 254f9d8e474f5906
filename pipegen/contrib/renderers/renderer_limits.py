"""The prompt limits of servers, asked once for each server and model and cached; failures are not
cached.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipegen.backends.servers.facts import models_of
from pipegen.contrib.renderers.renderer_engine import root_of

EXPIRES_AFTER = 300.0
"""Seconds for which an answer is cached: a server may restart with another limit."""
FACTS = ("max_req_input_len", "context_length")
"""SGLang's names of its limits."""
Key = tuple[str, str]
_log = logging.getLogger(__name__)


class ContextLimits:
    """The known limits. Callers that ask at the same time share one request."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[Key, tuple[float, int | None]] = {}
        self._asking: dict[tuple[object, Key], asyncio.Task[int | None]] = {}
        """By the loop too, which alone can wait for its task."""

    def clear(self) -> None:
        """Clear the cache."""
        self._known.clear()

    async def of(self, client: object, model: str, facts: Sequence[str] = ()) -> int | None:
        """The `max_model_len` of a model, from the server's `/v1/models`; None if that is missing
        or the request failed.

        facts: paths at an SGLang server's root, the first of which to answer names further limits;
        the smallest counts. Such a server's only model may have any name.
        """
        key = (str(getattr(client, "base_url", "")), model)
        at, limit = self._known.get(key, (float("-inf"), None))
        if self._clock() - at < EXPIRES_AFTER:
            return limit
        if getattr(client, "get", None) is None:
            return None
        place = (asyncio.get_running_loop(), key)
        if place not in self._asking:
            task = asyncio.ensure_future(self._ask(client, key, facts))
            task.add_done_callback(lambda _: self._asking.pop(place, None))
            self._asking[place] = task
        # a cancelled caller does not cancel the others
        return await asyncio.shield(self._asking[place])

    async def _ask(self, client: object, key: Key, facts: Sequence[str]) -> int | None:
        listed, about = await _page(client, "/models"), None
        for path in facts:
            about = about or await _page(client, f"{root_of(client)}{path}")
        if listed is None and about is None:
            return None
        models = models_of(listed or {})
        (only,) = models.values() if facts and len(models) == 1 else (None,)
        limits = [models.get(key[1], only), *map((about or {}).get, FACTS)]
        limit = min((value for value in limits if type(value) is int and value > 0), default=None)
        self._known[key] = (self._clock(), limit)
        return limit


async def _page(client: Any, path: str) -> Mapping[str, object] | None:
    """The object that the server answers; None if the client raises."""
    answers = await asyncio.gather(client.get(path, cast_to=dict[str, Any]), return_exceptions=True)
    answer: object = answers[0]
    if isinstance(answer, Exception):  # of any library: without a limit the request is sent
        _log.debug("%s could not be asked: %s", path, answer)
    elif isinstance(answer, BaseException):
        raise answer
    return answer if isinstance(answer, Mapping) else None


LIMITS = ContextLimits()
"""The limits of this process."""
