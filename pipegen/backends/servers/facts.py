"""What a server offers. It is found out by asking, kept for a while, and asked again when it is
stale or could not be found out.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

from pipegen.backends.http.transport import AttemptFailed, HttpStatusError, RowCall, Transport
from pipegen.backends.servers.extra_body import schema_fields
from pipegen.backends.servers.reading import json_of
from pipegen.backends.servers.wire import Facts, WireRequest

KEPT_SECONDS = 300.0
"""How long what was found out about a server is taken for true."""
PAUSE_SECONDS = 2.0
"""How long a look-up that failed is not tried again. It is remembered as a failure, never as "no
limit".
"""
LOOK_UP_SECONDS = 10.0
SCHEMA = "/openapi.json"
PAGE_BYTES = 2**23
"""The most bytes of one page of facts. A schema has some hundred thousand."""
_LONGEST_NAME = 4096
ABOUT = (
    "version",
    "enable_deterministic_inference",
    "max_req_input_len",
    "has_image_understanding",
    "reasoning_parser",
    "logprobs_mode",
    "max_logprobs",
    "sampling_mask_max_tokens",
    "device_type",
    "VLLM_BATCH_INVARIANT",
)
"""What is kept of a server's pages of facts, which may hold more than they should."""
_INNER = (
    ("vllm_env",),
    ("vllm_config", "device_config"),
    ("vllm_config", "model_config"),
)
"""Where vLLM has it."""


def _entries(answer: Mapping[str, object]) -> list[Mapping[str, Any]]:
    listing = answer.get("data")
    return (
        [entry for entry in listing if isinstance(entry, Mapping) and _is_name(entry.get("id"))]
        if isinstance(listing, list)
        else []
    )


def models_of(answer: Mapping[str, object]) -> dict[str, int | None]:
    """The models that `/v1/models` lists, each with its context length where the server reports it.

    >>> models_of({"data": [{"id": "tiny", "max_model_len": 256}, {"id": "other"}]})
    {'tiny': 256, 'other': None}
    """
    return {
        entry["id"]: (
            length if type(length := entry.get("max_model_len")) is int and length > 0 else None
        )
        for entry in _entries(answer)
    }


def about_in(page: Mapping[str, object]) -> dict[str, object]:
    """What is kept of a page; vLLM has settings in parts of it.

    >>> about_in(
    ...     {"version": "1", "vllm_config": {"model_config": {"logprobs_mode": "raw_logprobs"}}}
    ... )
    {'version': '1', 'logprobs_mode': 'raw_logprobs'}
    """
    facts = dict(page)
    for place in _INNER:
        inner = page
        for name in place:
            value = inner.get(name)
            inner = value if isinstance(value, Mapping) else {}
        facts = {**inner, **facts}
    return {
        name: facts[name]
        for name in ABOUT
        if isinstance(facts.get(name, facts), (str, int, float, type(None)))
    }


def adapters_in(answer: Mapping[str, object]) -> frozenset[str]:
    """Those of the models that `/v1/models` lists as adapters of another.

    >>> adapters_in({"data": [{"id": "tiny", "parent": None}, {"id": "a", "parent": "tiny"}]})
    frozenset({'a'})
    """
    return frozenset(entry["id"] for entry in _entries(answer) if _is_name(entry.get("parent")))


def _is_name(value: object) -> bool:
    """Whether requests can ask for a model by this."""
    return isinstance(value, str) and 0 < len(value) <= _LONGEST_NAME and value.isprintable()


class Directory:
    """The facts of one server. `known` is what is known now, without asking.

    paths: those of which the fields are read too, from the server's schema.
    """

    def __init__(
        self, transport: Transport, about: Sequence[str | None], paths: Sequence[str] = ()
    ) -> None:
        self._transport, self._about, self._paths = transport, about, paths
        self._facts: Facts | None = None
        self._stale_at, self._lacks = 0.0, dict[str, float]()
        self._known: Facts | None = None
        self._known_until = 0.0

    @property
    def known(self) -> Facts:
        """The same object as long as nothing changes."""
        if self._known is None or time.monotonic() >= self._known_until:
            facts, moment = self._facts or Facts(), time.monotonic()
            lacks = {word: until for word, until in self._lacks.items() if moment < until}
            self._known = dataclasses.replace(facts, lacks=frozenset(lacks))
            self._known_until = min(lacks.values(), default=float("inf"))
        return self._known

    def learn(self, lacks: str) -> None:
        """Remember for a while that the server lacks something."""
        self._lacks[lacks] = time.monotonic() + KEPT_SECONDS
        self._known = None

    @property
    def fresh(self) -> Facts | None:
        """What is known, where nothing has to be looked up for it."""
        return self.known if time.monotonic() < self._stale_at else None

    async def facts(self) -> Facts:
        """The facts, looked up where they are stale: once, however many ask at the same time. What
        could not be found out is empty.
        """
        if time.monotonic() >= self._stale_at:
            async with (await self._transport.here()).looking_up:
                if time.monotonic() >= self._stale_at:
                    await self._look_up()
        return self.known

    async def _look_up(self) -> None:
        models = await self._get("/v1/models")
        about_fields: dict[str, object] = {}
        for path in self._about:
            if path is not None and models is not None:
                about_fields |= about_in(await self._get(path) or {})
        schema = await self._get(SCHEMA) if self._paths and models is not None else None
        fields = schema_fields(schema, self._paths)
        self._facts = None
        if models is not None:
            self._facts = Facts(
                models=models_of(models),
                adapters=adapters_in(models),
                about=about_fields,
                fields=fields,
            )
        self._known, self._stale_at = (
            None,
            time.monotonic() + (PAUSE_SECONDS if models is None else KEPT_SECONDS),
        )

    async def _get(self, path: str) -> Mapping[str, object] | None:
        call = RowCall(asyncio.get_running_loop().time() + LOOK_UP_SECONDS)
        request = WireRequest(path=path, method="GET")
        try:
            reply = await self._transport.once(request, call, most=PAGE_BYTES)
        except (HttpStatusError, AttemptFailed):
            return None
        page = json_of(reply.body).value_or(None)
        return {"data": page} if isinstance(page, list) else page  # Together lists models so
