"""The JSON Schema of chat files, for editors: made from the tables and records that the files are
read with.

`pipegen schema` prints it. A first line such as `# yaml-language-server: $schema=chat.schema.json`
makes an editor complete and check a file.

>>> schema()["$defs"]["hf"]["properties"]["temperature"]["minimum"]
0
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from pipegen.config.chat_file import Agent, ChatUi
from pipegen.config.generation import OPTIONS_ANYWHERE, not_in_extra_body
from pipegen.config.keys import KEYS, LEGACY, VLLM_ALONE, keys_of, never_passed_on
from pipegen.core.errors import GenerationError
from pipegen.engines.settings import BESIDE, FallbackSettings
from pipegen.records.codec import declared, without_null
from pipegen.records.engine_list import BACKENDS, DIALECTS, TYPES
from pipegen.records.fields import JsonSchema, checks_of, help_of, schema_of
from pipegen.records.option_groups import GROUPS, StopOptions
from pipegen.records.option_records import GenerationOptions
from pipegen.records.option_table import SERVER_NAMES
from pipegen.records.results import Finish, GenerationResult, TokenLogprob

_NAMED: Mapping[str, Any] = {
    "type": {
        "enum": list(TYPES),
        "description": "; ".join(f"{name}: {text}" for name, text in TYPES.items()),
    },
    "model": {
        "type": "string",
        "minLength": 1,
        "description": "A local folder, a hub name, or the name that the server knows it by.",
    },
}
"""What every backend says."""
_TAKES_OVER: Mapping[str, Any] = {
    "if": {"required": ["fallback_when"], "properties": {"fallback_when": {"type": "array"}}},
    "then": {
        "required": ["fallback_backend"],
        "properties": {"fallback_backend": {"type": "string"}},
    },
}
"""`fallback_when` goes with `fallback_backend`."""
_ANY: Mapping[str, Any] = {"type": ["array", "boolean", "number", "object", "string", "null"]}


def schema() -> JsonSchema:
    """The schema of a chat file (draft 7, which editors know)."""
    agent = {
        "id": _optional(_described({"type": "string", "minLength": 1}, help_of(Agent)["id"])),
        "system_message": _fields(Agent)["system_message"],
    }
    backend = {"$ref": "#/$defs/backend"}
    agent_keys = [{"required": ["id"]}, {"required": ["system_message"]}]
    agents = {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/agent"}}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "pipegen chat",
        "description": (
            "One or several models that answer the same prompt: pipegen chat --config FILE."
        ),
        **_object(
            {
                "agents": agents,
                "agent": {"$ref": "#/$defs/agent"},
                "backend": backend,
                **agent,
                "ui": {"$ref": "#/$defs/ui"},
            }
        ),
        "oneOf": [
            {"required": ["backend"]},
            *({"required": [name], "not": {"anyOf": agent_keys}} for name in ("agents", "agent")),
        ],
        "$defs": {
            "agent": {**_object({**agent, "backend": backend}), "required": ["backend"]},
            "ui": {
                **_optional(_object({**_fields(ChatUi), "type": _fields(ChatUi)["display_type"]})),
                "not": {"type": "object", "required": ["display_type", "type"]},
            },
            "backend": _backend(),
            **{backend: {**_object(_backend_keys(backend)), **_TAKES_OVER} for backend in BACKENDS},
            "openai_server": _chat_server(),
        },
    }


def lines_schema() -> JsonSchema:
    """The schema of the lines of results, by what a result declares."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "pipegen generate",
        "description": "A line of results: an answer, or the error in its place.",
        "anyOf": [_of_type(GenerationResult), {"type": "object", "required": ["ok", "error"]}],
        "$defs": {kind.__name__: _of_record(kind) for kind in (GenerationResult, TokenLogprob)},
    }


def _of_record(kind: object) -> JsonSchema:
    fields = [field for field in declared(kind) if field.key != "id"]  # which may be a number
    return {
        "type": "object",
        "properties": {
            field.key: _of_type(field.hint | None if field.nullable else field.hint)
            for field in fields
        },
        "required": [field.key for field in fields if field.default is dataclasses.MISSING],
    }


def _of_type(hint: object) -> JsonSchema:
    args = get_args(hint)
    if NoneType in args:
        return {"anyOf": [_of_type(without_null(hint)), {"type": "null"}]}
    if get_origin(hint) is tuple and args[-1] is ...:
        return {"type": "array", "items": _of_type(args[0])}
    if get_origin(hint) is Literal:
        return {"enum": [*args]}
    if hint in (GenerationResult, TokenLogprob):
        return {"$ref": f"#/$defs/{hint.__name__}"}
    return {"enum": [*Finish]} if hint is Finish else {"type": _JSON[hint]} if hint in _JSON else {}


_JSON: Mapping[object, object] = {
    str: "string",
    int: "integer",
    bool: "boolean",
    float: ["number", "string"],
    **dict.fromkeys((Mapping[str, Any], GenerationOptions, GenerationError), "object"),
}
"""The types of JSON. A number that is not finite is text."""


def _backend() -> JsonSchema:
    """Which keys each type takes."""
    served = {
        "if": {"required": ["base_url"]},
        "then": {"$ref": "#/$defs/openai_server"},
        "else": {"$ref": "#/$defs/vllm"},
    }
    by_type = [
        _of(kind, {"$ref": f"#/$defs/{kind if kind in BACKENDS else 'openai_server'}"})
        for kind in TYPES
        if kind != "vllm"
    ]
    by_dialect = [
        _of(name, {"properties": {"dialect": {"enum": [name, None]}}})
        for name in DIALECTS
        if name in TYPES
    ]
    by_dialect.append(_of("sglang", {"propertyNames": {"not": {"enum": [*VLLM_ALONE]}}}))
    return {
        "type": "object",
        "properties": _NAMED,
        "required": ["type", "model"],
        "allOf": [*by_type, _of("vllm", served), *by_dialect],
    }


def _chat_server() -> JsonSchema:
    """The keys of a chat server: any other key is a field of its requests."""
    keys = _backend_keys("openai_server")
    refused = {*KEYS, *LEGACY, *never_passed_on(), "id", "system_message"} - keys.keys()
    description = "A field of the server's chat requests, which is passed on as it is."
    return {
        **_object(keys),
        "additionalProperties": {
            **_described(_ANY, description),
            "propertyNames": {"not": {"enum": sorted(OPTIONS_ANYWHERE)}},
        },
        "propertyNames": {"not": {"enum": sorted(refused)}},
        **_TAKES_OVER,
    }


def _of(kind: str, rule: Mapping[str, object]) -> JsonSchema:
    """A rule for the backends of a type."""
    return {"if": {"properties": {"type": {"const": kind}}, "required": ["type"]}, "then": rule}


def _backend_keys(backend: str) -> JsonSchema:
    fields = {
        name: _optional(_described(schema_of(key.check), key.words))
        for name, key in keys_of(backend).items()
    }
    fields |= _fields(FallbackSettings)
    fields["fallback_backend"] = {
        **fields["fallback_backend"],
        "enum": [name for name in fields["fallback_backend"]["enum"] if name != backend],
    }
    if "extra_body" in fields:
        fields["extra_body"] |= {
            "propertyNames": {
                "not": {"enum": list(not_in_extra_body(chat=backend == "openai_server"))}
            }
        }
    if backend != "openai_server":
        options = _options()
        for name in BESIDE.keys() & fields.keys():
            words = f"{fields[name]['description']} With {BESIDE[name]}: "
            options[name] = {**fields[name], "description": words + options[name]["description"]}
        return {**_NAMED, **fields, **options}
    options = _options()
    options["tool_choice"] = _described({}, "The server's own field, passed on as it is.")
    options["stop"]["anyOf"].append({"type": "string", "minLength": 1})
    return {**_NAMED, **fields, **options}


def _options() -> JsonSchema:
    """The generation options: flat, in their groups, and by the names that servers have for
    them.
    """
    flat = _fields(GenerationOptions)
    for name, kind in GROUPS.items():
        flat |= _fields(kind)
        if name != "stop":
            flat[name] = _object(_fields(kind))
    stops = _fields(StopOptions)
    flat["stop"] = {
        "anyOf": [stops["stop"], _object(stops)],
        "description": stops["stop"]["description"],
    }
    flat["top_k"] = {**flat["top_k"], "minimum": -1}  # the engines' word for all, which is 0 here
    return flat | {alias: flat[name] for alias, name in SERVER_NAMES.items()}


def _fields(kind: type) -> JsonSchema:
    """The fields of a record that have a check with a schema."""
    help_texts, checks = help_of(kind), checks_of(kind)
    return {
        f.name: _optional(_described(schema_of(checks[f.name]), help_texts[f.name]))
        for f in dataclasses.fields(kind)
        if schema_of(checks.get(f.name) or int)
    }


def _object(properties: Mapping[str, object]) -> JsonSchema:
    return {"type": "object", "properties": dict(properties), "additionalProperties": False}


def _described(subschema: Mapping[str, object], description: str) -> JsonSchema:
    return {**subschema, **({"description": description} if description else {})}


def _optional(subschema: Mapping[str, Any]) -> JsonSchema:
    """What is taken, or `null`, which says nothing."""
    if "enum" in subschema:
        return {**subschema, "enum": [*subschema["enum"], None]}
    kinds = subschema["type"]
    return {**subschema, "type": [*(kinds if isinstance(kinds, list) else [kinds]), "null"]}
