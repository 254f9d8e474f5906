"""The JSON Schema of a function's arguments, and whether arguments are as a schema says.

>>> def add(first: int, second: int = 0) -> int:
...     "Add two numbers."
...     return first + second
>>> schema_of(add)["required"], wrong_arguments({"first": "1"}, schema_of(add))
(['first'], "'first' takes integer, not '1'")
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Union

__all__ = ["schema_of", "wrong_arguments"]

_NAMES: Mapping[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
}
_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}


def schema_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The schema of a function's arguments, from its signature and type hints.

    `Annotated[str, "what it is"]` describes an argument. A type that JSON does not have takes any
    value. Raises `TypeError` for arguments that have no name in a call.
    """
    hints = typing.get_type_hints(function, include_extras=True)
    properties: dict[str, Any] = {}
    required: list[str] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(
                f"a tool takes named arguments, and {function.__name__} has {parameter}: wrap it in"
                " a function whose arguments are named"
            )
        properties[name] = _of_type(hints.get(name, Any))
        if parameter.default is parameter.empty:
            required.append(name)
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _of_type(hint: Any) -> dict[str, Any]:
    origin, given = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        words = next((one for one in given[1:] if isinstance(one, str)), None)
        return {**_of_type(given[0]), **({} if words is None else {"description": words})}
    if origin is Literal:
        return {"enum": list(given)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_of_type(one) for one in given]}
    if hint in (list, tuple, set) or origin in (list, tuple, set):
        return {"type": "array", **({"items": _of_type(given[0])} if given else {})}
    if hint in (dict, Mapping) or origin in (dict, Mapping):
        return {"type": "object"}
    return {"type": _NAMES[hint]} if hint in _NAMES else {}


def wrong_arguments(value: Any, schema: Mapping[str, Any], name: str = "") -> str | None:
    """What is wrong with a value, by the parts of a schema that most tools have (type, enum, anyOf,
    items, properties, required); None where nothing is.
    """
    where = repr(name) if name else "a call"
    one_of = schema.get("type", ())
    kinds = (one_of,) if isinstance(one_of, str) else tuple(one_of)
    if kinds and not any(_is(value, kind) for kind in kinds):
        return f"{where} takes {' or '.join(kinds)}, not {value!r:.80}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{where} takes one of {list(schema['enum'])!r:.200}, not {value!r:.80}"
    options = schema.get("anyOf", ())
    if options and all(wrong_arguments(value, one, name) for one in options):
        return wrong_arguments(value, options[0], name)
    if isinstance(value, list) and isinstance(schema.get("items"), Mapping):
        found = (
            wrong_arguments(one, schema["items"], f"{name}[{place}]")
            for place, one in enumerate(value)
        )
        return next((words for words in found if words), None)
    return _wrong_fields(value, schema, where, name) if isinstance(value, dict) else None


def _wrong_fields(
    value: dict[str, Any], schema: Mapping[str, Any], where: str, name: str
) -> str | None:
    properties = schema.get("properties", {})
    missing = [field for field in schema.get("required", ()) if field not in value]
    if missing:
        return f"{where} needs {', '.join(map(repr, missing))}"
    unknown = [field for field in value if field not in properties]
    if unknown and schema.get("additionalProperties") is False:
        return f"{where} takes no {unknown[0]!r:.80}; it takes {', '.join(map(repr, properties))}"
    prefix = f"{name}." if name else ""
    found = (
        wrong_arguments(value[field], properties[field], prefix + field)
        for field in value
        if field in properties
    )
    return next((words for words in found if words), None)


def _is(value: Any, kind: str) -> bool:
    """Whether a value is of a JSON type; of a type that is not known, any is."""
    if kind not in _TYPES:
        return True
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES[kind])
