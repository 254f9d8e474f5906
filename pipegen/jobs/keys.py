"""The key of a row: what its answer depends on, and nothing else.

A key is a digest of the prompt (messages and tools, a plain prompt, or ids), the continuation that is to be scored, the bytes of its images, the resolved
options, the model's identity, the attached plugins, the names of the stages and the caller's `version`. It is no position and no id: rows may be inserted,
removed and put in another order between two runs. Equal requests have an ordinal among each other, since two of them are two answers.
"""

from __future__ import annotations

import functools
import json
from array import array
from collections.abc import Mapping
from typing import Any

from pipegen.core.errors import CallFailed
from pipegen.core.pipe import Pipe
from pipegen.engines.protocol import Answers
from pipegen.records import strict_json
from pipegen.records.messages import plain_messages
from pipegen.records.options import GenerationOptions, flat_values, resolve
from pipegen.records.requests import GenerationRequest, ScoringRequest
from pipegen.records.results import Encoded, ResolvedRequest

__all__ = ["Counts", "Keys", "call_key", "changes", "content_of", "settings_of"]

_SHARED = ("model", "pipeline", "plugins", "version")
"""The settings that are part of every key."""


def settings_of(route: Pipe[Any, Any], options: GenerationOptions | None, version: str) -> dict[str, Any]:
    """What all rows of a run have in common, as plain data for `job.json`. Raises `GenerationError` where an engine's model cannot be read."""
    try:
        engines = [owned for owned in route.owns if isinstance(owned, Answers)]
    except CallFailed as failure:
        raise failure.error from failure
    later = {engine: f"engine {number}: " for number, engine in enumerate(map(id, engines), 1) if number > 1}
    plugins = [later.get(id(engine), "") + f"{plugin.name} {plugin.version}".strip() for engine in engines for plugin in engine.plugins]
    own = {} if options is None else {name: value for name, value in flat_values(options).items() if value is not None}
    return {
        "model": list(dict.fromkeys(engine.identity for engine in engines)),
        "pipeline": " >> ".join(part.name for part in route.parts),
        "plugins": plugins,
        "version": version,
        "options": strict_json.plain(own),
    }


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What makes the keys of a run others than those of an earlier one, in words.

    >>> changes({"model": "a", "options": {"temperature": 0.0}}, {"model": "b", "options": {"temperature": 0.7}})
    ['temperature was 0.0, is 0.7', 'the model is another']
    """
    words = []
    first, second = before.get("options", {}), now.get("options", {})
    for name in sorted({*first, *second}):
        if json.dumps(first.get(name)) != json.dumps(second.get(name)):  # to Python 1 is equal to true
            words.append(f"{name} was {first.get(name)!r:.60}, is {second.get(name)!r:.60}")
    words += ["the model is another"] if before.get("model") != now.get("model") else []
    for name in _SHARED[1:]:
        if before.get(name) != now.get(name):
            words.append(f"{name} was {before.get(name)!r:.60}, is {now.get(name)!r:.60}")
    return words


class Keys:
    """The keys of a run's requests, in the order in which they are asked for: the ordinals of equal ones are counted."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        from hashlib import blake2b  # importing pipegen loads no hashlib

        self._blake2b = blake2b
        shared = [settings[name] for name in _SHARED]  # the options of the run are part of each request's
        self._shared = json.dumps(shared).encode()
        self._counts = Counts()

    def of(self, request: GenerationRequest) -> str:
        """The key of the next such request. Its images' bytes are loaded, and the run's options are merged in."""
        digest = self._blake2b(self._shared, digest_size=16)
        digest.update(_options(request.options))
        digest.update(content_of(request))
        for source in request.sources:
            digest.update(self._blake2b(source.data or b"", digest_size=16).digest())
        times = self._counts.next(int.from_bytes(digest.digest()[:8], "big"))
        if times:
            digest.update(str(times).encode())
        return digest.hexdigest()


def call_key(row: str, number: int, identity: str, asked: Any) -> str:
    """The key of one input of a row's call: the row's key, the number of the call, the model, and what is asked of it."""
    from hashlib import blake2b

    digest = blake2b(json.dumps([row, number, identity]).encode(), digest_size=16)
    if isinstance(asked, (Encoded, ResolvedRequest)):
        digest.update(_options(asked.options))
    if isinstance(asked, Encoded):
        digest.update(array("Q", asked.prompt.token_ids).tobytes())
        digest.update(json.dumps([[image.digest, image.width, image.height] for image in asked.prompt.images]).encode())
    elif isinstance(asked, ResolvedRequest):
        digest.update(content_of(asked.request))
        for source in asked.request.sources:
            digest.update(blake2b(source.data or b"", digest_size=16).digest())
    return digest.hexdigest()


def content_of(request: GenerationRequest) -> bytes:
    """What the request says, without its id and options, and without what its images show."""
    messages = None if request.messages is None else plain_messages(request.messages)
    content: list[Any] = [messages, request.prompt, request.prompt_token_ids, request.tools]
    if isinstance(request, ScoringRequest):
        content.append({"continuation": request.continuation})
    return json.dumps(strict_json.plain(content), ensure_ascii=False).encode("utf-8", "surrogatepass")


@functools.lru_cache(maxsize=1024)
def _options(options: GenerationOptions | None) -> bytes:
    """The options that change the answer, each with its value; the requests of a run have few distinct ones."""
    values = strict_json.plain(flat_values(resolve(options) if options is not None else resolve()))
    asked = options is not None and bool(options.use_generation_config)
    return json.dumps([values, asked], ensure_ascii=False).encode("utf-8", "surrogatepass")


class Counts:
    """How often each number came. Most come once: these take 8 to 16 bytes each, where a dict takes a hundred."""

    def __init__(self) -> None:
        self._slots = array("Q", bytes(8 * 1024))
        self._used = 0
        self._more: dict[int, int] = {}

    def next(self, number: int) -> int:
        """How often the number came before."""
        number = number or 1  # 0 is an empty slot
        if not self._add(number):
            times = self._more[number] = self._more.get(number, 0) + 1
            return times
        self._used += 1
        if 2 * self._used > len(self._slots):
            kept, self._slots = self._slots, array("Q", bytes(16 * len(self._slots)))
            for one in kept:
                if one:
                    self._add(one)
        return 0

    def _add(self, number: int) -> bool:
        slots, mask = self._slots, len(self._slots) - 1
        place = number & mask
        while slots[place]:
            if slots[place] == number:
                return False
            place = (place + 1) & mask
        slots[place] = number
        return True
