"""Keys of a chat server that are no settings and no options: fields of its requests, which it is
sent as they are.

Which fields a server has, it says itself when it is asked. Here only what cannot be meant is
refused: fields that pipegen sets, and names that are nearly those of a key or an option.

>>> with_fields({"priority": 7}, {"a": 2}, Place("chat.yaml"))
{'a': 2, 'priority': 7}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipegen.config.config_files import Place
from pipegen.config.generation import is_option
from pipegen.records.fields import InvalidField
from pipegen.records.frozen import freeze

VLLM_ALONE = ("guided_grammar", "guided_whitespace_pattern")
"""Old names of fields within vLLM's `structured_outputs`."""


def never_passed_on() -> tuple[str, ...]:
    """The fields of chat requests that no file may set.

    >>> "messages" in never_passed_on(), "priority" in never_passed_on()
    (True, False)
    """
    from pipegen.backends.servers.extra_body import OWN, REMOVED

    return (*OWN, *(name for name, key in REMOVED.items() if not key and not is_option(name)))


def field_refusal(name: str, dialect: str) -> str:
    """Why a field is not passed on to a chat server of this dialect; empty where it is.

    >>> field_refusal("messages", "vllm"), field_refusal("ebnf", "sglang")
    ('pipegen sets this field itself; leave it out', '')
    """
    from pipegen.backends.servers.extra_body import OWN

    if name in OWN:
        return "pipegen sets this field itself; leave it out"
    if name in never_passed_on():
        return "vLLM has no such field now: its server settles it (--structured-outputs-config)"
    if name in VLLM_ALONE and dialect != "vllm":
        return "it is a field of vLLM's chat requests; set the server's dialect"
    return ""


def with_fields(
    fields: Mapping[str, object], extra: Mapping[str, object], place: Place
) -> dict[str, Any]:
    """`extra_body` with the fields beside it. `null` says nothing. Raises `InvalidField` where the
    two contradict each other.
    """
    from pipegen.backends.servers.extra_body import REMOVED

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
