"""Chat files: one or several models that answer the same prompt.

    agents:
      - id: qwen system_message: Be brief. backend: {type: vllm, model: Qwen/Qwen3-4B, base_url:
        "http://localhost:8000/v1", enable_thinking: true}
      - id: tiny
        backend: {type: hf, model: embedded, max_new_tokens: 64}
    ui: {display_type: rich_terminal, logging_enabled: false}

`backend: {...}` alone is short for one agent. Whatever is unknown is refused, with its place and
the nearest name.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Annotated, TypeVar

from returns.result import Failure, Success

from pipegen.config.config_files import Place, read_plain
from pipegen.config.engine_choice import BackendConfig, backend_from, checked
from pipegen.config.keys import KEYS, SYSTEM_NAMES, legacy_key_hint
from pipegen.core.errors import InvalidRequest
from pipegen.core.functional import without_none
from pipegen.core.names import CLOSE, InvalidField, nearest
from pipegen.core.pipe import row_stage
from pipegen.core.slots import Slot
from pipegen.records.fields import (
    UnknownField,
    boolean,
    checks_of,
    non_empty_string,
    one_of,
    record,
)
from pipegen.records.messages import Message
from pipegen.records.options import option_names
from pipegen.records.requests import GenerationRequest

if TYPE_CHECKING:
    from pipegen.core.pipe import Pipe
    from pipegen.records.results import GenerationResult


R = TypeVar("R")


@record
class Agent:
    """One model that is asked: its name, its system message, and its backend."""

    id: Annotated[str, non_empty_string, "Its name on the screen and in the output."]
    backend: BackendConfig
    """The engine that answers, with its options."""
    system_message: Annotated[
        str | None, non_empty_string, "The system message before the first prompt."
    ] = None

    def open(self) -> Pipe[GenerationRequest, GenerationResult]:
        """The route to it, with all that the file says: its system message before messages without
        one, its options, and the engine that takes over.

        As `BackendConfig.open`, which knows no system message. Raises as that does.
        """
        from hashlib import blake2b  # importing pipegen loads no hashlib

        pipe = self.backend.open()
        if self.system_message is None:
            return pipe
        text = json.dumps(self.system_message).encode()
        stage = row_stage(
            "system_message",
            partial(with_system_message, self.system_message),
            keeps_text=True,
            version=blake2b(text, digest_size=6).hexdigest(),
        )
        return pipe.with_parts((stage, *pipe.parts))


def with_system_message(system: str, request: GenerationRequest) -> Slot[GenerationRequest]:
    """The request with a system message first, unless it has one; `InvalidRequest` for one without
    messages.

    >>> with_system_message(
    ...     "Be brief.", GenerationRequest(messages=[{"role": "user", "content": "Hi"}])
    ... ).unwrap().messages[0].content
    'Be brief.'
    """
    if request.messages is None:
        message = (
            "the system prompt goes before messages, and this request has none: its prompt is"
            " continued as it is"
        )
        return Failure(
            InvalidRequest(
                message,
                hint=(
                    "ask by messages (the command makes them of a column: --map user=COLUMN), or"
                    " without a system prompt"
                ),
            )
        )
    if request.messages[0].role in ("system", "developer"):
        return Success(request)
    return Success(
        dataclasses.replace(
            request, messages=(Message(role="system", content=system), *request.messages)
        )
    )


@record
class ChatUi:
    """How answers are shown."""

    display_type: Annotated[
        str,
        one_of("rich_terminal", "simple"),
        "Side by side, or one after the other as plain text.",
    ] = "rich_terminal"
    logging_enabled: Annotated[
        bool,
        boolean,
        "Append each prompt and its answers to `.pipegen/chat.jsonl` in the current folder.",
    ] = False


@record
class ChatConfig:
    """A chat file."""

    agents: tuple[Agent, ...]
    """The agents, in the order of the file."""
    ui: ChatUi = ChatUi()
    """How answers are shown."""


def read_chat(path: str | os.PathLike[str]) -> ChatConfig:
    """The chat of a `.yaml`, `.yml` or `.json` file. Raises `InvalidField` and `UnknownField` with
    the file, the line and the way to the entry.
    """
    values, place = read_plain(path, "a chat file")
    return chat_from(values, place)


def chat_from(values: object, place: Place | None = None) -> ChatConfig:
    """The chat of plain data, as a file holds it.

    >>> chat = chat_from({"backend": {"type": "sglang", "model": "m", "max_tokens": 5}})
    >>> chat.agents[0].id, chat.agents[0].backend.options.max_new_tokens
    ('sglang', 5)
    """
    place = place or Place("chat")
    entries = _mapping(values, place, ("agents", "agent", "backend", "id", "system_message", "ui"))
    forms = [name for name in ("agents", "agent", "backend") if name in entries]
    if len(forms) != 1:
        raise InvalidField(
            f"{place}: takes one of agents, agent and backend,"
            f" {'not ' + ' and '.join(forms) if forms else 'and holds none of them'}"
        )
    if forms != ["backend"] and ("system_message" in entries or "id" in entries):
        raise InvalidField(f"{place}: id and system_message go with each of the {forms[0]}")
    if forms == ["agents"]:
        agents = _agents(entries["agents"], place.at("agents"))
    elif forms == ["agent"]:
        agents = (_agent(entries["agent"], place.at("agent")),)
    else:
        agents = (_agent({name: value for name, value in entries.items() if name != "ui"}, place),)
    return ChatConfig(agents=agents, ui=_ui(entries.get("ui") or {}, place.at("ui")))


def _agents(values: object, place: Place) -> tuple[Agent, ...]:
    if not isinstance(values, (list, tuple)) or not values:
        raise InvalidField(f"{place}: takes a list of at least one agent")
    agents = [_agent(entry, place.at(position)) for position, entry in enumerate(values)]
    named = [
        agent.id if entry.get("id") is not None else None
        for agent, entry in zip(agents, values, strict=True)
    ]
    for position, name in enumerate(named):
        if name is not None and name in named[:position]:
            raise InvalidField(
                f"{place.at(position)}: the id {name!r} is that of agents[{named.index(name)}]"
                " already"
            )
    used_names = {name for name in named if name is not None}
    for position, agent in enumerate(agents):
        if named[position] is None:  # the type is its name; the next of the type is its second
            free = next(
                name
                for index in count(1)
                if (name := agent.id if index == 1 else f"{agent.id}-{index}") not in used_names
            )
            agents[position] = dataclasses.replace(agent, id=free)
            used_names.add(free)
    return tuple(agents)


def _agent(values: object, place: Place) -> Agent:
    entries = _mapping(values, place, ("id", "backend", "system_message"))
    backend = backend_from(entries.get("backend"), place.at("backend"))
    return _record(Agent, {"id": backend.type, **without_none(entries), "backend": backend}, place)


def _ui(values: object, place: Place) -> ChatUi:
    entries = dict(_mapping(values, place, ("display_type", "type", "logging_enabled")))
    if "type" in entries:  # a name that many files of the original system use for it
        if "display_type" in entries:
            raise InvalidField(
                f"{place.at('type')}: means the same as display_type, which is set too"
            )
        entries["display_type"] = entries.pop("type")
    return _record(ChatUi, without_none(entries), place)


def _record(kind: type[R], entries: Mapping[str, object], place: Place) -> R:
    checks = checks_of(kind)
    for name, value in entries.items():
        if name in checks:
            is_bare = checks[name] is non_empty_string and isinstance(value, (bool, int, float))
            checked(name, value, checks[name], place, "; put it in quotes" if is_bare else "")
    return kind(**entries)


def _mapping(values: object, place: Place, keys: Iterable[str]) -> Mapping[str, object]:
    if not isinstance(values, Mapping):
        raise InvalidField(
            f"{place}: takes a mapping with {', '.join(keys)}, not {type(values).__name__}"
        )
    for name in values:
        if name not in keys:
            raise UnknownField(
                f"{place.at(name)}:"
                f" {legacy_key_hint(name, values) or f'there is no such key here{_meant(str(name), keys)}'}"
            )
    return values


def _meant(name: str, keys: Iterable[str]) -> str:
    """What an unknown key may be. It may be one of a backend."""
    if name in SYSTEM_NAMES and "system_message" in keys:
        return "; did you mean 'system_message'?"
    near = nearest(name, keys)
    if near or "backend" not in keys:
        return near
    near = nearest(name, (*KEYS, *option_names()), CLOSE)
    return f"{near.removesuffix('?')}, which goes into backend?" if near else ""
