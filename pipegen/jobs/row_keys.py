"""The key of a row: what its answer depends on, and nothing else.

A key is a digest of the prompt (messages and tools, a plain prompt, or ids), the turns after it,
the continuation to score, and the bytes of its images and videos. It covers the resolved options,
what the engines say that their answers depend on, the attached plugins, the names of the stages and
the caller's `version`. Of the engines' adapters it covers the one that the request names, by its
content. A request without turns has the key of the plain pipeline, also under
`pg.turns(route)`. A key is no position and no id: rows may be inserted, removed and put in another
order between two runs. Equal requests have an ordinal among each other, since two of them are two
answers. A key ends with its mark, by which `pipegen.jobs.history` tells with which settings a row
was made.

Some spellings mean the same: a schema's titles and descriptions, `1` and `1.0`, `localhost` and
`127.0.0.1`. They are equal in keys.

Some versions of transformers change messages before the chat template reads them. A key names the
changes that bear on its request: the prompt is another one then. Requests without such messages have
the same key in all versions.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from immutabledict import immutabledict

from pipegen.records import strict_json
from pipegen.records.messages import VideoSource, plain_messages
from pipegen.records.option_records import GenerationOptions
from pipegen.records.option_table import OPTIONS
from pipegen.records.options import flat_values, in_effect, options_from, resolve
from pipegen.records.requests import GenerationRequest, RequestPolicy, ScoringRequest
from pipegen.records.results import GenerationResult
from pipegen.stages import Encoded, ResolvedRequest

_SHARED = ("engines", "pipeline", "plugins", "version")
"""The settings that are part of every key."""
SHARED_MARK, MARK = 5, 12
"""Digits at the end of a key: the first of them for the shared settings, all of them for these and
the row's resolved options.
"""
Settings: TypeAlias = Mapping[str, Any]
"""The settings of a run, or of one engine of it, as plain data: see `pipegen.jobs.history`."""
RULE = 2
"""The rule of keys, which `job.json` names: folders with another one are not read."""
Reading: TypeAlias = Literal["numbers", "bare"]
"""What of a schema counts: all but how numbers are written, or neither that nor what is said about
it.
"""


def mark_of(settings: Settings) -> str:
    """The end of the keys of the rows that were made with these settings, and with no options of
    their own.
    """
    options = options_from(settings["options"])
    adapter = settings.get("adapters", {}).get(options.adapter, "")
    mark = _options(options, _reading(settings), adapter)[1]
    return _mark(_shared(settings), SHARED_MARK) + mark


def in_keys(engine: Settings) -> dict[str, object]:
    """What an engine's answers depend on, as the keys of a run have it.

    >>> engine = {"base_url": "http://localhost:8000", "extra_body": {"top_a": 1.0}}
    >>> in_keys(engine)
    {'base_url': 'http://127.0.0.1:8000', 'extra_body': {'top_a': 1}}
    """
    values = dict(engine)
    values.pop("adapters", None)  # which are part of the keys of the rows that name them
    for name in ("base_url", "model"):
        if isinstance(values.get(name), str):
            values[name] = _LOCALHOST.sub("127.0.0.1", values[name])
    return {name: _shortest(value) for name, value in values.items()}


_LOCALHOST = re.compile(r"(?<=://)localhost(?=[:/]|$)", re.IGNORECASE)


def _shortest(value: object) -> object:
    """The value, with whole numbers as integers wherever they are in it."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {name: _shortest(inner) for name, inner in value.items()}
    return [_shortest(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def _reading(settings: Settings) -> Reading:
    """A chat server may show its model the words of a schema, so they count there, and where the
    engines are not known.
    """
    engines = settings.get("engines")
    if engines is None:
        return "numbers"
    chat = any("base_url" in engine and "model" not in engine for engine in engines)
    return "numbers" if chat else "bare"


def _shared(settings: Settings) -> bytes:
    return json.dumps([settings[name] for name in _SHARED], sort_keys=True).encode()


def _mark(data: bytes, digits: int) -> str:
    from hashlib import blake2b  # importing pipegen loads no hashlib

    return blake2b(data, digest_size=8).hexdigest()[:digits]


def context_of(settings: Settings, policy: RequestPolicy, reading: str = "") -> list[Any]:
    """What the keys of a run's requests depend on, besides the requests: the settings, what
    requests may ask for, and how they are read.
    """
    return [
        {
            name: settings.get(name)
            for name in (*_SHARED, "options", "turns", "rewrites", "keys", "adapters")
            if name in settings or name != "adapters"
        },
        repr(policy),
        reading,
    ]


class Keys:
    """The keys of a run's requests, in the order in which they are asked for: the ordinals of equal
    ones are counted.
    """

    def __init__(self, settings: Settings) -> None:
        from hashlib import blake2b  # importing pipegen loads no hashlib

        self._blake2b = blake2b
        self._shared = _shared(settings)  # the options of the run are part of each request's
        self._turns = str(settings.get("turns", "")).encode()
        self._rewrites: Sequence[str] = settings.get("rewrites", ())
        self._adapters: Mapping[str, str] = settings.get("adapters", {})
        self._mark = _mark(self._shared, SHARED_MARK)
        self._reading = _reading(settings)
        self._counts = NumberCounts()

    def of(self, request: GenerationRequest) -> str:
        """The key of the next such request. Its images' bytes are loaded, and the run's options are
        merged in.
        """
        first = self.first(request)
        times = self.count(first)
        return self.later(request, times) if times else first.hex()

    def _adapter_of(self, options: GenerationOptions | None) -> str:
        """The content of the adapter that options name."""
        return "" if options is None else self._adapters.get(options.adapter or "", "")

    def first(self, request: GenerationRequest) -> bytes:
        """The key of the first of such requests, as 16 bytes."""
        return bytes.fromhex(self.later(request, 0))

    def count(self, first_key: bytes) -> int:
        """How many such requests came before, by the key of the first of them."""
        return self._counts.next(int.from_bytes(first_key[:8], "big"))

    def later(self, request: GenerationRequest, times: int) -> str:
        """The key of a request before which so many equal ones came."""
        options, mark = _options(request.options, self._reading, self._adapter_of(request.options))
        digest = self._blake2b(self._shared, digest_size=16 - MARK // 2)
        digest.update(options)
        digest.update(content_of(request))
        if request.turns:
            digest.update(self._turns)
        if self._rewrites:
            digest.update("".join(_rewritten(request, self._rewrites)).encode())
        for piece in _contents(request):
            digest.update(self._blake2b(piece, digest_size=16).digest())
        if times:
            digest.update(str(times).encode())
        return digest.hexdigest() + self._mark + mark


_THOUGHTS = ("reasoning_content", "thinking", "reasoning")
"""The names of a message's thought; the renderer fills in the first two."""


def _rewritten(request: GenerationRequest, rewrites: Sequence[str]) -> Iterator[str]:
    """Those of the rewrites that change a message of the request."""
    messages = [
        message
        for message in (*(request.messages or ()), *request.turns)
        if message.extras or message.content is None
    ]
    if "null" in rewrites and any(
        message.content is None or None in message.extras.values() for message in messages
    ):
        yield "null"
    thoughts = [[message.extras.get(name) for name in _THOUGHTS] for message in messages]
    if "reasoning" in rewrites and any(
        any(thought is not None for thought in names) and None in names[:2] for names in thoughts
    ):
        yield "reasoning"


def _contents(request: GenerationRequest) -> Iterator[bytes]:
    """The bytes of the request's images and videos; of frames with times the times, too."""
    for source in request.sources:
        if isinstance(source, VideoSource) and source.frames:
            yield repr(source.times).encode()
        yield from source.contents or (b"",)


def call_key(
    row_key: str,
    number: object,
    engine: str,
    engine_input: object,
    settings: Settings = immutabledict(),
) -> str:
    """The key of one input of a row's call: the row's key, the number of the call, what the
    engine's answers depend on, and what is asked of it in a run of these settings.
    """
    from hashlib import blake2b

    digest = blake2b(json.dumps([row_key, number, engine]).encode(), digest_size=16)
    if isinstance(engine_input, (Encoded, ResolvedRequest)):
        # which adapter they name is part of the row's key
        digest.update(_options(engine_input.options, _reading(settings))[0])
    if isinstance(engine_input, Encoded):
        digest.update(array("Q", engine_input.prompt.token_ids).tobytes())
        digest.update(
            json.dumps(
                [[image.digest, image.width, image.height] for image in engine_input.prompt.images]
            ).encode()
        )
    elif isinstance(engine_input, ResolvedRequest):
        digest.update(content_of(engine_input.request))
        for piece in _contents(engine_input.request):
            digest.update(blake2b(piece, digest_size=16).digest())
    elif isinstance(engine_input, GenerationResult):  # whose tools are called
        digest.update(json.dumps(strict_json.plain(engine_input.tool_calls)).encode())
    return digest.hexdigest()


def content_of(request: GenerationRequest) -> bytes:
    """What the request says, without its id and options, and without what its images show."""
    messages = None if request.messages is None else plain_messages(request.messages)
    content: list[object] = [messages, request.prompt, request.prompt_token_ids, request.tools]
    if isinstance(request, ScoringRequest):
        content.append({"continuation": request.continuation})
    if request.continues is not None:
        continues = request.continues
        fields = [f.name for f in dataclasses.fields(continues) if f.compare]
        content.append({"continues": {name: getattr(continues, name) for name in fields}})
    if request.turns:
        content.append({"turns": plain_messages(request.turns)})
    return json.dumps(strict_json.plain(content), ensure_ascii=False).encode(
        "utf-8", "surrogatepass"
    )


@functools.lru_cache(maxsize=1024)
def _options(
    options: GenerationOptions | None, reading: Reading, adapter: str = ""
) -> tuple[bytes, str]:
    """The options that change the answer, each with its value, and their part of a mark; the
    requests of a run have few distinct ones. `adapter` is the content of the one that they name.
    """
    resolved = resolve(options) if options is not None else resolve()
    values, changed = strict_json.plain(flat_values(resolved)), in_effect(resolved)
    for name, entry in OPTIONS.items():
        if entry.row.later and name not in changed:
            del values[name]
    if values["json_schema"] is not None:
        values["json_schema"] = json.dumps(_schema(json.loads(values["json_schema"]), reading))
    uses_generation_config = options is not None and bool(options.use_generation_config)
    content = [values, uses_generation_config, *([adapter] if adapter else [])]
    data = json.dumps(content, ensure_ascii=False).encode("utf-8", "surrogatepass")
    return data, _mark(data, MARK - SHARED_MARK)


_WORDS = frozenset(
    {"title", "description", "$comment", "examples", "deprecated", "readOnly", "writeOnly"}
)
"""Keywords of JSON Schema that say nothing of what is valid."""
_BOUNDS = frozenset(
    {
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
        *("minContains", "maxContains"),
    }
)
_BY_NAME = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
)
"""Keywords with schemas by names, which are no keywords."""
_DATA = frozenset({"const", "enum", "default", "required", "type", "dependentRequired"})
"""Keywords whose values are data."""


def _schema(schema: object, reading: Reading) -> Any:
    """A schema as it counts. Words do not, where the grammar alone reads it.

    >>> _schema({"title": "A", "properties": {"title": {"description": "?"}}}, "bare")
    {'properties': {'title': {}}}
    >>> _schema({"title": "A", "minimum": 1.0, "const": 1.0}, "numbers")
    {'title': 'A', 'minimum': 1, 'const': 1.0}
    """
    if isinstance(schema, list):
        return [_schema(inner, reading) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    values: dict[str, object] = {}
    for name, value in schema.items():
        if name in _WORDS and reading == "bare":
            continue
        if name in _BY_NAME and isinstance(value, dict):
            values[name] = {inner: _schema(value[inner], reading) for inner in value}
        elif name in _BOUNDS:
            values[name] = _shortest(value)
        else:
            values[name] = value if name in _DATA else _schema(value, reading)
    return values


class NumberCounts:
    """How often each number came. Most come once: these take 8 to 16 bytes each, where a dict takes
    a hundred.
    """

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
            old_slots, self._slots = self._slots, array("Q", bytes(16 * len(self._slots)))
            for old_number in old_slots:
                if old_number:
                    self._add(old_number)
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
