"""What `extra_body` may hold: the fields that the server itself has, and none that pipegen sets.

A server says which fields its requests have in `/openapi.json`, which is read with its other facts.
It would ignore any other field, so that is refused. Of a server without that page, only what is
nearly the name of an option is refused.

>>> from pipegen.backends.servers.wire import Facts, WireRequest
>>> request = WireRequest(path="/generate", body={"input_ids": [1], "lora": "a"})
>>> facts = Facts(fields={"/generate": frozenset({"input_ids", "lora_path"})})
>>> with_known_fields({"lora": "a"}, facts, request).failure().message
"extra_body.lora: the server's /generate has no such field; did you mean 'lora_path'?"

`extra_body` of chat completions: what no server may be sent.

>>> check_extra_body({"n": 2}, "plain").message
'extra_body.n is set by pipegen itself'
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping

from returns.result import Failure, Success

from pipegen.answer.split_thought import thinking_beside_form
from pipegen.backends.servers.wire import Facts, WireRequest
from pipegen.core.errors import UnsupportedOption
from pipegen.core.names import CLOSE, nearest
from pipegen.core.slots import Slot
from pipegen.records.engine_list import DIALECTS, UNKNOWN_SERVERS, Dialect
from pipegen.records.option_records import GenerationOptions
from pipegen.records.option_table import OPTIONS, server_fields

OWN = ("messages", "stream", "stream_options", "rid", "request_id", "input_ids")
"""Fields that pipegen sets itself, for each request another value."""
OWN_FIELDS = ("messages", "n", "stream")
"""What `extra_body` must not change: answers are read by it."""
REMOVED: Mapping[str, str] = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "guided_whitespace_pattern": "whitespace_pattern",
    "guided_decoding_backend": "",
}
"""Fields that vLLM had before `structured_outputs`, whose key each is now. Never sent."""


def check_extra_body(
    extra_body: Mapping[str, object], dialect: Dialect
) -> UnsupportedOption | None:
    """The field of `extra_body` that no server of this dialect may be sent, if there is one.

    >>> check_extra_body({"separate_reasoning": True}, "vllm").option
    'separate_reasoning'
    >>> check_extra_body({"separate_reasoning": True}, "sglang") is None
    True
    """
    for name, value in extra_body.items():
        if name in OWN_FIELDS:
            words = f"extra_body.{name} is set by pipegen itself"
            hint = "leave it out: requests, samples and stream(...) set it"
            return UnsupportedOption(words, option=name, hint=hint)
        if value is not None and name == "separate_reasoning" and dialect != "sglang":
            words = f"separate_reasoning is a field of SGLang, and the dialect is {dialect!r}"
            return UnsupportedOption(words, option=name, hint="leave it out, or set the dialect")
        if value is not None and name in REMOVED and DIALECTS[dialect] not in UNKNOWN_SERVERS:
            words = f"extra_body.{name} is a field that vLLM has no more, and would ignore"
            hint = "use json_schema, regex or choice, or structured_outputs as in vLLM"
            return UnsupportedOption(words, option=name, hint=hint)
    return None


def unthought_form(
    options: GenerationOptions, extra_body: Mapping[str, object]
) -> UnsupportedOption | None:
    """The refusal of a form beside thinking that is asked for: by the option, or by a field of
    `extra_body`.

    >>> options = GenerationOptions(structured={"regex": "a"})
    >>> unthought_form(options, {"chat_template_kwargs": {"enable_thinking": True}}).option
    'enable_thinking'
    >>> unthought_form(options, {}) is None
    True
    """
    variables = extra_body.get("chat_template_kwargs")
    asked = (
        options.chat is not None and options.chat.enable_thinking,
        extra_body.get("enable_thinking"),
        variables.get("enable_thinking") if isinstance(variables, Mapping) else None,
    )
    return thinking_beside_form(options) if True in asked else None


def with_known_fields(
    extra_body: Mapping[str, object], facts: Facts, wire_request: WireRequest
) -> Slot[WireRequest]:
    """The request, where the server has each field of `extra_body` that is in it."""
    fields = facts.fields.get(wire_request.path)
    for name in extra_body:
        if name not in (wire_request.body or {}) or (fields is not None and name in fields):
            continue
        near = _near_option(name) if fields is None else nearest(name, fields)
        if fields is None and not near:
            continue
        where = (
            "it is no option"
            if fields is None
            else f"the server's {wire_request.path} has no such field"
        )
        words = f"extra_body.{name}: {where}{near}"
        error = UnsupportedOption(words, option=name, hint="correct the name, or leave it out")
        return Failure(error)
    return Success(wire_request)


@functools.lru_cache(maxsize=256)
def _near_option(name: str) -> str:
    """`; did you mean 'x'?` for a name that is nearly a server's name of an option."""
    names = {field for entry in OPTIONS.values() for field in server_fields(entry.row)}
    return "" if name in names else nearest(name, sorted(names), CLOSE)


def schema_fields(schema: object, paths: Collection[str]) -> dict[str, frozenset[str]]:
    """The fields of requests at these paths, by the server's OpenAPI page, where it names them.

    >>> body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Asked"}}}}
    >>> kinds = {"Asked": {"properties": {"model": {}}}}
    >>> page = {"paths": {"/a": {"post": {"requestBody": body}}}, "components": {"schemas": kinds}}
    >>> schema_fields(page, ["/a", "/b"]), schema_fields([], ["/a"])
    ({'/a': frozenset({'model'})}, {})
    """
    fields: dict[str, frozenset[str]] = {}
    for path in paths:
        body = _at(
            schema, "paths", path, "post", "requestBody", "content", "application/json", "schema"
        )
        reference = _at(body, "$ref")
        if isinstance(reference, str):
            body = _at(schema, "components", "schemas", reference.rpartition("/")[2])
        names = _at(body, "properties")
        if isinstance(names, Mapping) and names:
            fields[path] = frozenset(names)
    return fields


def _at(value: object, *keys: str) -> object:
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
