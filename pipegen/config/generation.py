"""Generation options in files: an options file, and those of a backend: under pipegen's names or a
server's, in the template's variables, in `extra_body`.

>>> options, extra = options_beside(
...     {"max_tokens": 9},
...     {"chat_template_kwargs": {"enable_thinking": True}, "top_k": 5},
...     Place("chat.yaml"),
...     "vllm",
... )
>>> options.max_new_tokens, options.chat.enable_thinking, options.top_k, extra
(9, True, 5, {'chat_template_kwargs': {'enable_thinking': True}})
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from pipegen.config.config_files import Place, read_plain
from pipegen.core.names import InvalidField
from pipegen.records.engine_list import DIALECTS, UNKNOWN_SERVERS, Dialect
from pipegen.records.option_groups import GROUPS
from pipegen.records.option_records import GenerationOptions
from pipegen.records.option_table import OPTIONS, SERVER_NAMES, server_fields
from pipegen.records.options import flat_values, in_our_words, merge, options_from

OPTIONS_ANYWHERE = frozenset(
    name
    for name in (*OPTIONS, *SERVER_NAMES)
    if OPTIONS[SERVER_NAMES.get(name, name)].group not in ("structured", "preprocess")
)
"""Keys that are options within another key too. Servers have fields of their own that hold the form
of an answer, or how images are read (vLLM's `mm_processor_kwargs`).
"""


def _chat_fields(dialect: Dialect) -> tuple[str, ...]:
    """The fields of a chat server's requests that are options. What no chat server bars as pipegen
    does has the server's own meaning.
    """
    engine = DIALECTS[dialect]
    rows = [
        entry.row
        for entry in OPTIONS.values()
        if (engine not in UNKNOWN_SERVERS or engine in entry.row.engines)
        and (entry.role != "tokens" or not entry.row.engines.isdisjoint(DIALECTS.values()))
    ]
    return tuple(
        field for row in rows for field in server_fields(row) if field != "chat_template_kwargs"
    )


def is_option(name: str) -> bool:
    """Whether a key beside a backend is a generation option.

    >>> is_option("max_tokens"), is_option("base_url")
    (True, False)
    """
    return name in SERVER_NAMES or name in GROUPS or name in OPTIONS


def not_in_extra_body(*, chat: bool) -> tuple[str, ...]:
    """The fields that the `extra_body` of a chat server, or of one asked by token ids, must not
    hold: pipegen says them itself.

    >>> "top_k" in not_in_extra_body(chat=True), "top_k" in not_in_extra_body(chat=False)
    (False, True)
    """
    from pipegen.backends.servers.extra_body import OWN

    return OWN if chat else (*OWN, *_chat_fields("vllm"), "chat_template_kwargs")


def read_options(path: str | os.PathLike[str]) -> GenerationOptions:
    """The options of a `.json`, `.yaml` or `.yml` file: one mapping, flat (`strip_whitespace:
    true`) or nested (`decode: {strip_whitespace: true}`).

    Nothing in it is ignored. Raises `InvalidField` (`UnknownField` for an unknown name, with the
    nearest one), which names the file and the place in it, also when the file cannot be read.
    """
    values, place = read_plain(path, "an options file")
    if not isinstance(values, dict):
        raise InvalidField(f"{place}: takes a mapping of options, not {type(values).__name__}")
    for name, value in values.items():  # one by one: so each refusal has its place
        options_from({name: value}, place.at(name).line())
    return options_from(values, place.line())


def options_beside(
    entries: Mapping[str, object],
    extra: Mapping[str, object],
    place: Place,
    dialect: Dialect | None,
) -> tuple[GenerationOptions, dict[str, Any]]:
    """The options under pipegen's names, and what is left of `extra_body`.

    An option in the `extra_body` of a chat server is that option, so that results tell the truth of
    it. Raises `InvalidField`, which names the place, for a value that an option does not take, and
    where two places contradict each other.
    """
    values = dict(_renamed(entries, place))
    if dialect is not None and isinstance(values.get("stop"), str):  # as chat servers take it
        values["stop"] = [values["stop"]]
    variables = values.get("template_kwargs")
    if isinstance(variables, Mapping):
        values["template_kwargs"] = {
            name: value for name, value in variables.items() if name != "enable_thinking"
        }
    for key in entries:  # one by one: so each refusal has its place
        name = SERVER_NAMES.get(key, key)
        options_from({name: values[name]}, str(place.at(key)))
    options = options_from(values, str(place))
    options = _with_thinking(options, variables, place)
    # what it would do is not known: silence is no answer
    unknown = dialect is not None and DIALECTS[dialect] in UNKNOWN_SERVERS
    if unknown and options.chat is not None and options.chat.enable_thinking is False:
        message = (
            "a plain server has no switch for thinking: set its dialect (vllm or sglang), or put"
            " into extra_body what it takes"
        )
        raise InvalidField(f"{place.at('enable_thinking')}: {message}")
    if dialect is not None:
        return _lifted(options, extra, place.at("extra_body"), dialect)
    for field in extra:
        if field in not_in_extra_body(chat=False):
            raise InvalidField(
                f"{place.at('extra_body', field)}: a server asked by token ids has no such field;"
                " options go beside the other keys of the backend"
            )
    return options, dict(extra)


def _renamed(entries: Mapping[str, object], place: Place) -> Mapping[str, object]:
    values: dict[str, object] = {}
    for key, value in entries.items():
        name = SERVER_NAMES.get(key, key)
        if name in values:
            raise InvalidField(f"{place.at(key)}: means the same as {name}, which is set too")
        values[name] = in_our_words(name, value)
    return values


def _lifted(
    options: GenerationOptions, extra: Mapping[str, object], place: Place, dialect: Dialect
) -> tuple[GenerationOptions, dict[str, object]]:
    """What `extra_body` says of options moves there, but for names by which pipegen would not send
    them.
    """
    left = dict(extra)
    for field in extra:
        if field in not_in_extra_body(chat=True):
            raise InvalidField(f"{place.at(field)}: pipegen sets this field itself; leave it out")
        name, value = SERVER_NAMES.get(field, field), extra[field]
        if value is None or field not in _chat_fields(dialect):
            continue
        lifted = (
            [value] if field == "stop" and isinstance(value, str) else in_our_words(name, value)
        )
        options = _with(options, name, lifted, place.at(field))
        if field != "max_completion_tokens":
            del left[field]
    variables = extra.get("chat_template_kwargs")
    if variables is not None and not isinstance(variables, Mapping):
        raise InvalidField(
            f"{place.at('chat_template_kwargs')}: takes a mapping, not {variables!r:.200}"
        )
    if DIALECTS[dialect] not in UNKNOWN_SERVERS:
        options = _with_thinking(options, variables, place)
    return options, left


def _with(options: GenerationOptions, name: str, value: object, place: Place) -> GenerationOptions:
    """The options with one more, which must not contradict what they say of it."""
    more = options_from({name: value}, str(place))
    before, now = flat_values(options)[name], flat_values(more)[name]
    if None not in (before, now) and before != now:
        raise InvalidField(f"{place}: {name} is {now!r:.80} here, and {before!r:.80} elsewhere")
    return merge(more, options) or more


def _with_thinking(
    options: GenerationOptions, variables: object, place: Place
) -> GenerationOptions:
    """The options with what a template's variables say of thinking."""
    place = place.at("chat_template_kwargs")
    value = variables.get("enable_thinking") if isinstance(variables, Mapping) else None
    if value is not None and type(value) is not bool:
        raise InvalidField(
            f"{place.at('enable_thinking')}: takes True or False, not {value!r:.200}"
        )
    return _with(options, "enable_thinking", value, place)
