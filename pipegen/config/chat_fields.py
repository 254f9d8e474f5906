"""The fields of a chat server's requests beside the keys of its backend in a file, and are passed
on as they are.

>>> with_fields({"logit_bias": {"7": 1}}, {"a": 2}, Place("chat.yaml"))
{'a': 2, 'logit_bias': {'7': 1}}
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from pipegen.config.files import Place
from pipegen.config.generation import is_option
from pipegen.records.engine_list import shown
from pipegen.records.fields import InvalidField
from pipegen.records.frozen import freeze

__all__ = ["field_help", "field_words", "fields_of", "passed_on", "with_fields"]


def passed_on() -> Mapping[str, tuple[str, ...]]:
    """The fields that are passed on, each with the dialects that take it.

    >>> passed_on()["stop_regex"], "temperature" in passed_on(), "messages" in passed_on()
    (('sglang',), False, False)
    """
    from pipegen.backends.servers.chat_fields import FIELDS, OWN, REMOVED, dialects_of

    names = sorted(set().union(*FIELDS.values()) - {*OWN, "model", "separate_reasoning"})
    moved = {name: ("vllm",) for name, key in REMOVED.items() if key and not is_option(name)}
    return {name: dialects_of(name) for name in names if not is_option(name)} | moved


def fields_of(dialect: str | None) -> Collection[str]:
    """The fields that a server of this dialect is passed; none for an engine that is no chat server
    (None).
    """
    return [name for name, dialects in passed_on().items() if dialect in dialects]


def field_words(name: str, kind: str, dialect: str | None) -> str:
    """Why a field of chat requests is not taken; empty for a name that is none.

    >>> field_words("ebnf", "vllm", "vllm")
    "type 'vllm' takes no such key: it is a field of SGLang's chat requests"
    """
    from pipegen.backends.servers.chat_fields import OWN, REMOVED

    if dialect is not None and name in OWN:
        return "pipegen sets this field itself; leave it out"
    if name in REMOVED:
        return "vLLM has this field no more: its server settles it (--structured-outputs-config)"
    takers = passed_on().get(name, ())
    if not takers:
        return ""
    where = "" if dialect != "plain" else "; set the server's dialect, or put it into extra_body"
    return f"type {kind!r} takes no such key: it is {field_help(takers)}{where}"


def field_help(dialects: Iterable[str]) -> str:
    """What a field is that these dialects take.

    >>> field_help(["vllm", "sglang"])
    "a field of vLLM's and SGLang's chat requests"
    """
    *others, last = [
        f"{'OpenAI' if dialect == 'plain' else shown(dialect)}'s" for dialect in dialects
    ]
    return f"a field of {', '.join(others)}{' and ' if others else ''}{last} chat requests"


def with_fields(
    fields: Mapping[str, Any], extra: Mapping[str, Any], place: Place
) -> dict[str, Any]:
    """`extra_body` with the fields beside it. `null` says nothing. Raises `InvalidField` where the
    two contradict each other.
    """
    from pipegen.backends.servers.chat_fields import REMOVED

    out = dict(extra)
    for name, value in fields.items():
        if value is None:
            continue
        try:
            freeze(value)
        except ValueError as refusal:
            raise InvalidField(f"{place.at(name)}: takes {refusal}") from None
        if name in REMOVED:
            before = out.get("structured_outputs")
            out["structured_outputs"] = {
                REMOVED[name]: value,
                **(before if isinstance(before, Mapping) else {}),
            }
            continue
        if name in extra and freeze(extra[name]) != freeze(value):
            raise InvalidField(
                f"{place.at('extra_body', name)}: {name} is {extra[name]!r:.80} here, and"
                f" {value!r:.80} elsewhere"
            )
        out[name] = value
    return out
