"""The JSON Schema of a function's arguments.

>>> def add(first: int, second: int = 0) -> int:
...     "Add two numbers."
...     return first + second
>>> schema_of(add)["properties"], schema_of(add)["required"]
({'first': {'type': 'integer'}, 'second': {'type': 'integer'}}, ['first'])
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Union

__all__ = ["schema_of"]

_NAMES: Mapping[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
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
