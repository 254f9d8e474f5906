"""The prompt limits of servers, asked once for each server and model and cached; failures are not
cached.
"""

from __future__ import annotations

import asyncio
import logging
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipegen.backends.servers.facts import models_of
from pipegen.contrib.renderers.backend import root_of

__all__ = ["LIMITS", "Limits"]

EXPIRES_AFTER = 300.0
"""Seconds for which an answer is cached: a server may restart with another limit."""
FACTS = ("max_req_input_len", "context_length")
"""SGLang's names of its limits."""
Key = tuple[str, str]
_log = logging.getLogger(__name__)


class Limits:
    """The known limits. Callers that ask at the same time share one request."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[Key, tuple[float, int | None]] = {}
        self._asking: weakref.WeakKeyDictionary[
            asyncio.AbstractEventLoop, dict[Key, asyncio.Task[int | None]]
        ] = weakref.WeakKeyDictionary()

    def clear(self) -> None:
        """Clear the cache."""
        self._known.clear()

    async def of(
        self, client: Any, model: str, *, only_card: bool = False, facts: Sequence[str] = ()
    ) -> int | None:
        """The `max_model_len` of a model, from the server's `/v1/models`; None if that is missing
        or the request failed.

        only_card: accept the single listed model under any name, as for SGLang. facts: further
        paths at the server's root to try for SGLang's limits; the smallest limit counts.
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
        return await asyncio.shield(task)  # a cancelled caller does not cancel the others

    async def _ask(
        self, client: Any, key: Key, only_card: bool, facts: Sequence[str]
    ) -> int | None:
        listed = await _page(client, "/models")
        limits = [] if listed is None else [_limit_in(listed, key[1], only_card)]
        for path in facts:
            page = await _page(client, f"{root_of(client)}{path}")
            if isinstance(page, Mapping):
                limits += [page.get(name) for name in FACTS]
                break
        if not limits:
            return None
        limit = min((value for value in limits if type(value) is int and value > 0), default=None)
        self._known[key] = (self._clock(), limit)
        return limit


async def _page(client: Any, path: str) -> Any:
    """The server's answer; None if the client raises."""
    answers = await asyncio.gather(client.get(path, cast_to=dict[str, Any]), return_exceptions=True)
    answer: Any = answers[0]
    if isinstance(answer, Exception):  # of any library: without a limit the request is sent
        _log.debug("%s could not be asked: %s", path, answer)
        return None
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _limit_in(listed: Any, model: str, only_card: bool) -> int | None:
    models = models_of(listed) if isinstance(listed, Mapping) else {}
    return next(iter(models.values())) if only_card and len(models) == 1 else models.get(model)


LIMITS = Limits()
"""The limits of this process."""
